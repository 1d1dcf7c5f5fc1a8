"""The categorical alignment distribution against torch.distributions on the real positions."""

import pytest
import torch

from onmt_varattn.latent.distributions import MINUS_INFINITY, Categorical, Dirichlet

pytestmark = pytest.mark.torch_only

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
    torch.testing.assert_close(found.mean(memory), right, rtol=0, atol=1e-14)


def test_entropy_has_a_finite_gradient_at_padding():
    scores = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    Categorical(scores, torch.tensor([False, False, True])).entropy().sum().backward()
    assert torch.isfinite(scores.grad).all()


def dirichlet():
    scores, _ = distribution()
    padding = torch.arange(5) >= torch.tensor(LENGTHS).view(3, 1, 1)
    scores = scores.masked_fill(padding, float("-inf"))
    return scores, Dirichlet(scores)


def test_dirichlet_is_torchs_on_the_real_positions():
    scores, found = dirichlet()
    other_scores = scores.flip(1) * 0.7
    other = Dirichlet(other_scores)
    torch.manual_seed(0)
    draw = found.rsample()
    for n, length in enumerate(LENGTHS[:2]):  # torch's needs two categories
        right = torch.distributions.Dirichlet(scores[n, :, :length].exp())
        another = torch.distributions.Dirichlet(other_scores[n, :, :length].exp())
        for ours, theirs in (
            (found.probs[n, :, :length], right.mean),
            (found.entropy()[n], right.entropy()),
            (found.kl(other)[n], torch.distributions.kl_divergence(right, another)),
            (found.log_prob(draw)[n], right.log_prob(draw[n, :, :length])),
        ):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
        assert (draw[n, :, length:] == 0).all()
    assert found.kl(other)[2].abs().max() < 1e-12
    torch.testing.assert_close(draw.sum(-1), torch.ones(3, 2, dtype=torch.float64), rtol=0, atol=1e-12)
    assert (found.argmax() == scores.argmax(-1)).all()


def test_dirichlet_draws_have_its_moments_and_its_gradient():
    """Means and d E[z_0] / d score within five standard errors, from 40,000 draws."""
    row = torch.tensor([0.4, -0.5, 1.0, float("-inf")], dtype=torch.float64)
    scores = row.expand(40_000, 4).clone().requires_grad_()
    torch.manual_seed(1)
    draws = Dirichlet(scores).rsample()
    mean = torch.softmax(row, 0)
    error = 5 * draws.std(0) / 200
    assert ((draws.mean(0) - mean).abs() <= error).all()
    gradient = torch.autograd.grad(draws[:, 0].sum(), scores)[0]
    right = mean[0] * (torch.tensor([1.0, 0, 0, 0]) - mean)
    error = 5 * gradient.std(0) / 200
    assert ((gradient.mean(0) - right).abs() <= error + 1e-12).all()


def test_log_prob_kl_argmax_and_samples_of_the_categorical():
    _, found = distribution()
    other = Categorical(found.scores.flip(1) * 0.5)
    assert torch.equal(found.argmax(), found.probs.argmax(-1))
    index = torch.zeros(3, 2, 1, dtype=torch.long)
    torch.testing.assert_close(found.log_prob(index), found.log_probs[..., :1])
    for n, length in enumerate(LENGTHS):
        right = torch.distributions.kl_divergence(
            torch.distributions.Categorical(logits=found.scores[n, :, :length]),
            torch.distributions.Categorical(logits=other.scores[n, :, :length]),
        )
        torch.testing.assert_close(found.kl(other)[n], right, rtol=0, atol=1e-13)
    torch.manual_seed(2)
    row = Categorical(found.scores[1, :1])
    draws = row.sample(20_000)[0]
    share = torch.bincount(draws, minlength=5).double() / len(draws)
    error = 5 * (row.probs[0] * (1 - row.probs[0]) / len(draws)).sqrt()
    assert ((share - row.probs[0]).abs() <= error).all()


def test_dirichlet_stays_finite_in_float32_for_any_score():
    scores = torch.tensor(
        [[200.0, -200.0, 3.0, float("-inf")], [-90.0, -90.0, -90.0, -90.0]], requires_grad=True
    )
    q = Dirichlet(scores)
    torch.manual_seed(0)
    total = (
        q.rsample().sum()
        + q.entropy().sum()
        + q.entropy_of_mean().sum()
        + Dirichlet(scores.detach()).kl(q).sum()
    )
    assert torch.isfinite(total)
    assert torch.isfinite(torch.autograd.grad(total, scores)[0]).all()


def test_entropy_of_the_mean():
    scores, found = dirichlet()
    torch.testing.assert_close(found.entropy_of_mean(), Categorical(scores).entropy(), rtol=0, atol=1e-12)


def test_a_dirichlet_is_like_another_where_their_misfit_is_least():
    """Minimised by gradient descent from anywhere; the other keeps its mean, and only loses its scale."""
    scores = torch.tensor([[2.0, -1.0, 4.0, MINUS_INFINITY], [0.5, 3.0, 1.0, 1.0]], dtype=torch.float64)
    padding = scores == MINUS_INFINITY
    own = torch.zeros_like(scores).masked_fill(padding, MINUS_INFINITY).requires_grad_()
    other = scores.clone().requires_grad_()
    mean = Dirichlet(scores).probs
    for _ in range(400):
        misfit = Dirichlet(own).misfit(Dirichlet(other)).sum()
        gradients = torch.autograd.grad(misfit, (own, other))
        with torch.no_grad():
            for value, gradient in zip((own, other), gradients, strict=True):
                value -= gradient.masked_fill(padding, 0.0)
    torch.testing.assert_close(Dirichlet(other).probs, mean)
    torch.testing.assert_close(Dirichlet(own).concentration, Dirichlet(other).concentration)
    assert Dirichlet(own).kl(Dirichlet(other)).abs().max() < 1e-8
    torch.testing.assert_close(other[0, :3].mean().item(), 0.0, atol=1e-8, rtol=0)


def test_the_misfit_of_a_categorical_is_the_divergence_from_one_that_stays():
    own, other = (torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    misfit = Categorical(own).misfit(Categorical(other)).sum()
    torch.testing.assert_close(misfit, Categorical(own).kl(Categorical(other)).sum())
    assert torch.autograd.grad(misfit, other, allow_unused=True) == (None,)


def test_scores_that_are_not_finite_can_be_drawn_from_and_show_it():
    scores = torch.tensor([[float("nan"), 0.0, 1.0], [0.0, 1.0, float("-inf")]])
    q = Categorical(scores)
    drawn = q.sample(50)
    assert drawn.min() >= 0
    assert drawn.max() <= 2
    assert (drawn[1] < 2).all()
    assert q.log_prob(drawn)[0].isnan().all()
    assert q.log_prob(drawn)[1].isfinite().all()
