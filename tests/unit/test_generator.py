"""The quick generator of searches against the plain one that autograd sees."""

import pytest
import torch

from onmt_varattn.latent.likelihood import OutputLayer
from onmt_varattn.nmt.model.decoder import CandidateStates
from onmt_varattn.nmt.model.generator import MixtureGenerator

N, K, D, V = 7, 5, 6, 1030  # a vocabulary whose rows are padded


def generator(dtype=torch.float64):
    torch.manual_seed(0)
    return MixtureGenerator(torch.nn.Linear(D, V, dtype=dtype))


def candidates(counts, dtype=torch.float64):
    """One step of N positions with so many real candidates each."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(1, N, K, D, generator=generator, dtype=torch.float64).to(dtype)
    scores = torch.randn(1, N, K, generator=generator, dtype=torch.float64)
    padding = torch.arange(K) >= torch.tensor(counts).unsqueeze(1)
    return CandidateStates(states, torch.log_softmax(scores.masked_fill(padding, float("-inf")), -1))


RAGGED = [5, 3, 5, 1, 2, 5, 4]


@pytest.mark.parametrize("counts", [[5] * N, RAGGED, [1] * N])
@pytest.mark.parametrize("rows", [1, 6, 1000])
def test_it_equals_the_plain_one(counts, rows, monkeypatch):
    monkeypatch.setattr("onmt_varattn.nmt.model.generator.CHUNK_LOGITS", rows * 1040)
    model, given = generator(), candidates(counts)
    plain = model(given)
    with torch.no_grad():
        quick = model(given)
    torch.testing.assert_close(quick, plain.detach(), rtol=0, atol=1e-12)
    assert quick.shape == (1, N, V)
    assert plain.requires_grad


def test_padded_candidates_are_not_computed(monkeypatch):
    rows = []
    plain = OutputLayer.logits
    monkeypatch.setattr(
        OutputLayer, "logits", lambda self, states: rows.append(len(states)) or plain(self, states)
    )
    with torch.no_grad():
        generator()(candidates(RAGGED))
    assert sum(rows) == sum(RAGGED)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_models_have_probabilities_in_float32(dtype):
    model, given = generator().to(dtype), candidates(RAGGED, dtype)
    with torch.no_grad():
        quick = model(given)
    right = model.double()(CandidateStates(given.states.double(), given.log_weights))
    assert quick.dtype == torch.float32
    torch.testing.assert_close(quick.double(), right.detach(), rtol=0, atol=0.05)


@pytest.mark.parametrize(("gap", "found"), [(20.0, 20.0), (75.0, 75.0), (400.0, 87.3)])
def test_very_improbable_words(gap, found):
    """Below the smallest float32 a mixture's probability is that float, not nothing."""
    model = generator(torch.float32)
    torch.nn.init.zeros_(model[0].weight)
    torch.nn.init.zeros_(model[0].bias)
    model[0].bias.data[3] = -gap
    with torch.no_grad():
        log_probs = model(CandidateStates(torch.zeros(1, 1, 2, D), torch.full((1, 1, 2), 0.5).log()))
    expected = -found - torch.tensor(float(V - 1)).log().item() * (gap == found)
    assert log_probs[0, 0, 3].item() == pytest.approx(expected, abs=0.05 if gap == found else 0.1)
