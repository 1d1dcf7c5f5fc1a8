"""The categorical alignment distribution against torch.distributions on the real positions."""

import torch

from onmt_varattn.latent.alignment import Categorical

LENGTHS = (5, 3, 1)


def distribution():
    scores = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    padding = torch.arange(5) >= torch.tensor(LENGTHS).view(3, 1, 1)
    return scores, Categorical(scores, padding)


def test_probabilities_and_entropy_are_those_of_the_real_positions():
    scores, found = distribution()
    for n, length in enumerate(LENGTHS):
        right = torch.distributions.Categorical(logits=scores[n, :, :length])
        torch.testing.assert_close(found.probs[n, :, :length], right.probs, rtol=0, atol=1e-14)
        torch.testing.assert_close(found.log_probs[n, :, :length], right.logits, rtol=0, atol=1e-14)
        torch.testing.assert_close(found.entropy()[n], right.entropy(), rtol=0, atol=1e-14)
        assert (found.probs[n, :, length:] == 0).all()


def test_expectation_weighs_the_memory():
    _, found = distribution()
    memory = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    right = torch.einsum("nqs,nsm->nqm", found.probs, memory)
    torch.testing.assert_close(found.expectation(memory), right, rtol=0, atol=1e-14)


def test_entropy_has_a_finite_gradient_at_padding():
    scores = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    Categorical(scores, torch.tensor([False, False, True])).entropy().sum().backward()
    assert torch.isfinite(scores.grad).all()
