"""Distributions over mixtures of positions, against quadrature, draws and torch's own."""

import math

import pytest
import torch

from onmt_varattn.latent import RELAXED, Concrete, Dirichlet, LogisticNormal
from onmt_varattn.latent.distributions import MINUS_INFINITY, Categorical, gumbel_noise

pytestmark = pytest.mark.torch_only

DOUBLE = torch.float64
KINDS = {
    "dirichlet": Dirichlet,
    "logistic_normal": lambda scores: LogisticNormal(scores, 0.8),
    "concrete": lambda scores: Concrete(scores, 0.7),
}
PAIRS = [([0.3, -0.5], [0.9, 0.2]), ([1.5, 0.0], [-0.4, 0.4]), ([0.0, 0.0], [0.0, 0.0])]


def grid(points=400_001):
    """Mixtures of two positions, dense near both ends: z, and the weights of a sum over z_1."""
    u = torch.linspace(-60, 60, points, dtype=DOUBLE)
    first = torch.sigmoid(u)
    z = torch.stack([first, torch.sigmoid(-u)], -1)
    return z, z[:, 0] * z[:, 1] * (u[1] - u[0])


def test_all_are_registered():
    assert list(RELAXED) == list(KINDS)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("scores", [pair[0] for pair in PAIRS])
def test_densities_integrate_to_one(name, scores):
    z, weights = grid()
    q = KINDS[name](torch.tensor(scores, dtype=DOUBLE).expand(len(z), 2))
    assert (q.log_prob(z).exp() * weights).sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_draws_have_the_density(name):
    """The mean and the mean square of the first share; 5 standard errors (one in 1.7 million fails)."""
    scores = torch.tensor([0.7, -0.4], dtype=DOUBLE)
    torch.manual_seed(0)
    draws = KINDS[name](scores.expand(200_000, 2)).rsample()
    torch.testing.assert_close(draws.sum(1), torch.ones(len(draws), dtype=DOUBLE))
    z, weights = grid()
    density = KINDS[name](scores.expand(len(z), 2)).log_prob(z).exp() * weights
    for power in (1, 2):
        right = (density * z[:, 0] ** power).sum().item()
        values = draws[:, 0] ** power
        assert abs(values.mean().item() - right) < 5 * values.std().item() / math.sqrt(len(values))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_divergences_are_those_of_the_densities(name, one, other):
    z, weights = grid()
    q, p = (KINDS[name](torch.tensor(x, dtype=DOUBLE).expand(len(z), 2)) for x in (one, other))
    log_q, log_p = q.log_prob(z), p.log_prob(z)
    right = (log_q.exp() * (log_q - log_p) * weights).sum().item()
    if name == "concrete":  # by draws
        torch.manual_seed(1)
        q, p = (KINDS[name](torch.tensor(x, dtype=DOUBLE).expand(200_000, 2)) for x in (one, other))
        values = q.kl(p)
        error = 5 * values.std().item() / math.sqrt(len(values)) + 1e-9
    else:
        values, error = q.kl(p)[:1], 1e-6
    assert abs(values.mean().item() - right) < error


@pytest.mark.parametrize("name", KINDS)
def test_padding_does_not_matter(name):
    scores = torch.tensor([0.3, -0.5, 1.1], dtype=DOUBLE)
    padded = torch.cat([scores, torch.tensor([MINUS_INFINITY, MINUS_INFINITY], dtype=DOUBLE)])
    other = torch.tensor([0.0, 0.4, -0.2, MINUS_INFINITY, MINUS_INFINITY], dtype=DOUBLE)
    short, long = KINDS[name](scores), KINDS[name](padded)
    z = torch.tensor([0.2, 0.5, 0.3], dtype=DOUBLE)
    junk = torch.cat([z, torch.tensor([0.7, float("nan")], dtype=DOUBLE)])
    torch.testing.assert_close(long.log_prob(junk), short.log_prob(z))
    torch.testing.assert_close(long.probs[:3], short.probs)
    torch.testing.assert_close(long.entropy_of_mean(), short.entropy_of_mean())
    torch.testing.assert_close(long.misfit(KINDS[name](other)), short.misfit(KINDS[name](other[:3])))
    assert long.argmax() == short.argmax() == 2
    torch.manual_seed(0)
    draw = long.rsample()
    assert (draw[3:] == 0).all()
    assert draw.sum().item() == pytest.approx(1)
    if name != "concrete":
        torch.testing.assert_close(long.kl(KINDS[name](other)), short.kl(KINDS[name](other[:3])))
    leaf = padded.clone().requires_grad_()
    torch.manual_seed(0)
    (KINDS[name](leaf).rsample()[0] + KINDS[name](leaf).kl(KINDS[name](other))).backward()
    assert torch.isfinite(leaf.grad).all()
    assert (leaf.grad[3:] == 0).all()


@pytest.mark.parametrize("name", ["logistic_normal", "concrete"])
def test_gradients_go_through_draws_and_divergences(name):
    other = torch.tensor([0.0, 0.4, -0.2], dtype=DOUBLE)

    def value(scores):
        torch.manual_seed(2)
        q = KINDS[name](scores)
        return q.rsample().square().sum() + q.kl(KINDS[name](other))

    assert torch.autograd.gradcheck(value, torch.tensor([0.3, -0.5, 1.1], dtype=DOUBLE, requires_grad=True))


def test_noise_drawn_again_given_its_largest_component_has_the_same_distribution():
    """REBAR's coupling: z ~ p; u and u given z have equal moments, and are largest at z. 5 standard errors."""
    scores = torch.tensor([0.5, -1.0, 0.2, MINUS_INFINITY], dtype=DOUBLE)
    q = Categorical(scores.expand(200_000, 4))
    torch.manual_seed(3)
    noisy, again, index = q.coupled_gumbels()
    assert torch.equal(noisy.argmax(1, keepdim=True), index)
    assert torch.equal(again.argmax(1, keepdim=True), index)
    assert (again[:, 3] == MINUS_INFINITY).all()
    share = torch.bincount(index.flatten(), minlength=4) / len(index)
    error = 5 * (q.probs[0] * (1 - q.probs[0]) / len(index)).sqrt()
    assert ((share - q.probs[0]).abs() <= error).all()
    for power in (1, 2, 3):
        one, other = noisy[:, :3] ** power, again[:, :3] ** power
        error = 5 * (one - other).std(0) / math.sqrt(len(one))
        assert ((one.mean(0) - other.mean(0)).abs() <= error).all(), power
    assert (noisy[:, :3] - again[:, :3]).std() > 0.5, "they are not the same numbers"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_draws_in_half_precision_reach_improbable_positions(dtype):
    """5 standard errors; with noise in half precision the second position comes too rarely, or never."""
    q = Categorical(torch.tensor([8.0, 0.0]).to(dtype).expand(1_000_000, 2))
    torch.manual_seed(5)
    share = q.coupled_gumbels()[2].double().mean().item()
    right = torch.softmax(torch.tensor([8.0, 0.0]), 0)[1].item()
    assert abs(share - right) < 5 * math.sqrt(right / 1_000_000)
    assert q.gumbel_sample(0.5).dtype == dtype


def test_gumbel_noise_has_its_mean_and_variance():
    torch.manual_seed(4)
    noise = gumbel_noise(torch.empty(400_000, dtype=DOUBLE))
    assert noise.mean().item() == pytest.approx(0.5772, abs=5 * math.pi / math.sqrt(6 * 400_000))
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.02)
