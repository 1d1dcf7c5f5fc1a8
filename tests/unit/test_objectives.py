"""Objectives and estimators against loops, enumeration and statistics, in float64.

Statistical tests draw many independent estimates of one gradient and compare their mean with the
enumerated gradient. The bound is 5 standard errors: a right estimator fails it for one number
with probability 6e-7, and there are fewer than 100 numbers in all. Seeds are fixed besides.
"""

import itertools
import math

import entmax
import pytest
import torch

from onmt_varattn.latent import (
    BASELINES,
    OBJECTIVES,
    Categorical,
    Dirichlet,
    Emitter,
    EstimatorSettings,
    Positions,
    Refinement,
    ResidualReadout,
    SoftContext,
)
from onmt_varattn.latent.objectives import warm_up
from tests.worlds import (
    DOUBLE,
    ORACLES,
    D,
    M,
    World,
    build_objective,
    hard,
    marginal,
    memory_of,
    variational,
)

pytestmark = pytest.mark.torch_only

SIGMAS = 5


def assert_same(found, right, atol=1e-10):
    assert found.keys() == right.keys()
    for name in right:
        torch.testing.assert_close(
            found[name], right[name], rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
        )


# Exactness


@pytest.mark.parametrize(("name", "estimator"), ORACLES)
@pytest.mark.parametrize("chunk", [1, 20, 10_000])
def test_enumerated_objectives_equal_plain_loops_with_their_gradients(name, estimator, chunk):
    world = World()
    found = world.loss(name, estimator, chunk_logits=chunk)
    right = -sum(ORACLES[name, estimator](*row) for row in world.rows())
    torch.testing.assert_close(found.loss, right, rtol=0, atol=1e-10)
    assert_same(world.gradients(3 * found.loss), world.gradients(3 * right))
    torch.testing.assert_close(found.report["bound"], -right.detach(), rtol=0, atol=1e-10)


def test_soft_equals_a_plain_loop():
    world = World()
    found = world.loss("soft")
    right = 0
    for r, n in enumerate(world.sentence):
        length = world.lengths[n]
        p = torch.softmax(world.raw_prior[r, :length], 0)
        right = right - world.log_f(r, sum(p[i] * world.memory[n, i] for i in range(length)))
    torch.testing.assert_close(found.loss, right, rtol=0, atol=1e-10)
    assert_same(world.gradients(found.loss), world.gradients(right))


def test_the_gap_of_the_bound_is_the_divergence_from_the_true_posterior():
    world = World()
    for l, log_p, log_q in world.rows():
        evidence = marginal(l, log_p, log_q)
        gap = evidence - variational(l, log_p, log_q)
        divergence = sum(q.exp() * (q - (p + x - evidence)) for x, p, q in zip(l, log_p, log_q, strict=True))
        assert gap.item() == pytest.approx(divergence.item(), abs=1e-12)
        assert gap.item() >= -1e-12
    bound, evidence = world.loss("variational", "enum").loss, world.loss("marginal").loss
    assert bound.item() > evidence.item() + 1e-3


def test_reported_parts_add_up():
    report = World().loss("variational", "enum").report
    assert report["bound"].item() == pytest.approx((-report["xent"] - report["kl"]).item(), abs=1e-10)
    world = World()
    rows = list(world.rows())
    entropies = {"prior": 1, "posterior": 2}
    for name, part in entropies.items():
        right = -sum((x.exp() * x).item() for row in rows for x in row[part])
        assert report[f"{name}_entropy"].item() == pytest.approx(right, abs=1e-10)


def test_hard_is_variational_with_the_prior_as_posterior():
    world = World()
    with torch.no_grad():
        world.raw_posterior.copy_(world.raw_prior)
    hard_loss, variational_loss = world.loss("hard", "enum").loss, world.loss("variational", "enum").loss
    torch.testing.assert_close(hard_loss, variational_loss, rtol=0, atol=1e-10)
    ours, theirs = world.gradients(hard_loss), world.gradients(variational_loss)
    theirs["prior"] = theirs["prior"] + theirs.pop("posterior")  # they are one and the same here
    ours.pop("posterior")
    assert_same(ours, theirs)


ALL = [(name, estimator) for name, objective in OBJECTIVES.items() for estimator in objective.estimators]


@pytest.mark.parametrize(("name", "estimator"), ALL)
def test_with_one_source_word_all_objectives_are_one(name, estimator):
    """There is nothing to align: every bound is the log-likelihood itself, every draw the one word."""
    world = World(lengths=(1, 1), steps=(2, 1))
    right = -sum(l[0] for l, _, _ in world.rows())
    found = world.loss(name, estimator, samples=2)
    assert found.report["bound"].item() == pytest.approx(-right.item(), abs=1e-10)


@pytest.mark.parametrize(
    ("function", "plain"), [("entmax15", entmax.entmax15), ("sparsemax", entmax.sparsemax)]
)
def test_sparse_enumerates_the_support_exactly(function, plain):
    world = World()
    found = world.loss("variational", "sparse", sparse=function)
    right, left_out = 0, 0
    for r, (l, log_p, _) in enumerate(world.rows()):
        q = plain(world.raw_posterior[r, : len(l)], dim=-1)
        left_out += int((q == 0).sum())
        right = right - sum(q[i] * (l[i] + log_p[i] - q[i].log()) for i in range(len(l)) if q[i] > 0)
    assert left_out > 0, "nothing is sparse here: the test shows nothing"
    torch.testing.assert_close(found.loss, right, rtol=0, atol=1e-10)
    assert_same(world.gradients(found.loss), world.gradients(right))


@pytest.mark.parametrize("estimator", ["enum", "sparse"])
def test_only_cells_with_mass_are_computed(estimator):
    world = World()
    rows = []
    emitter = world.emitter(10_000)
    plain = emitter.output.gold
    emitter.output.gold = lambda states, gold: rows.append(len(states)) or plain(states, gold)
    objective = world.objective("variational", estimator, sparse="sparsemax")
    objective(world.positions(), emitter)
    if estimator == "enum":
        assert rows == [sum(len(l) for l, _, _ in world.rows())]
    else:
        support = entmax.sparsemax(world.masked(world.raw_posterior), dim=-1) > 0
        assert rows == [int(support.sum())]


def test_kl_weight_scales_the_divergence_only():
    world = World()
    report = world.loss("variational", "enum").report
    for weight in (0.0, 0.3):
        loss = world.loss("variational", "enum", kl_weight=weight).loss
        assert loss.item() == pytest.approx((report["xent"] + weight * report["kl"]).item(), abs=1e-10)


def test_entropy_weight_rewards_the_priors_entropy():
    world = World()
    plain, priced = world.loss("hard", "enum"), world.loss("hard", "enum", {"entropy_weight": 0.7})
    right = plain.loss - 0.7 * plain.report["prior_entropy"]
    assert priced.loss.item() == pytest.approx(right.item(), abs=1e-10)
    assert priced.report["bound"].item() == pytest.approx(plain.report["bound"].item(), abs=1e-12)


# Gradients


@pytest.mark.parametrize(("name", "estimator"), ORACLES)
def test_enumerated_gradients_by_finite_differences(name, estimator):
    """By all but the emission's own parameters, which the plain loops cover."""
    world = World(lengths=(3, 2), steps=(1, 2))
    names = ("queries", "raw_prior", "raw_posterior", "memory", "weight", "bias")

    def loss(*values):
        for leaf, value in zip(names, values, strict=True):
            setattr(world, leaf, value)
        return world.loss(name, estimator).loss

    values = [getattr(world, leaf).detach().clone().requires_grad_() for leaf in names]
    assert torch.autograd.gradcheck(loss, values)


def replicated(world, row, copies):
    """One position of a world, `copies` times: each copy gets draws of its own."""
    n = world.sentence[row]
    length = world.lengths[n]

    def copy(tensor):
        return tensor[row].detach().expand(copies, *tensor[row].shape).clone().requires_grad_()

    queries = copy(world.queries)
    prior = world.raw_prior[row, :length].detach().expand(copies, length).clone().requires_grad_()
    posterior = world.raw_posterior[row, :length].detach().expand(copies, length).clone().requires_grad_()
    memory = world.memory[n : n + 1, :length].detach()
    contexts = torch.softmax(prior, 1) @ memory[0]
    positions = Positions(
        queries,
        contexts,
        prior,
        posterior,
        memory_of(memory),
        torch.zeros(copies, dtype=torch.long),
        torch.arange(copies),
        copies,
        world.gold[row].expand(copies),
    )
    emitter = Emitter(world.readout, world.emitter().output, chunk_logits=2**20)
    return positions, emitter, {"queries": queries, "prior": prior, "posterior": posterior}


def estimates(world, row, copies, name, estimator, options=None, **settings):
    """Independent estimates of one position's gradient: copies x size, by name."""
    positions, emitter, leaves = replicated(world, row, copies)
    objective = build_objective(name, estimator, EstimatorSettings(**settings), **dict(options or {}))
    found = torch.autograd.grad(objective(positions, emitter).loss, list(leaves.values()), allow_unused=True)
    return {n: torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, found, strict=True)}


def enumerated(world, row, formula):
    l, log_p, log_q = list(world.rows())[row]
    grads = torch.autograd.grad(
        -formula(l, log_p, log_q), (world.queries, world.raw_prior, world.raw_posterior), allow_unused=True
    )
    length = len(l)
    right = {}
    for (name, grad), leaf in zip(
        zip(("queries", "prior", "posterior"), grads, strict=True),
        (world.queries, world.raw_prior, world.raw_posterior),
        strict=True,
    ):
        value = torch.zeros_like(leaf) if grad is None else grad
        right[name] = value[row] if name == "queries" else value[row, :length]
    return right


def assert_unbiased(found, right):
    for name, draws in found.items():
        error = draws.mean(0) - right[name]
        standard_error = draws.std(0) / math.sqrt(len(draws))
        assert (error.abs() <= SIGMAS * standard_error + 1e-9).all(), (
            f"{name}: {error} against {standard_error}"
        )


UNBIASED = [
    ("variational", "sample", {"baseline": "soft"}, {}),
    ("variational", "sample", {"baseline": "none"}, {}),
    ("variational", "sample", {"baseline": "average"}, {}),
    ("variational", "sample", {"baseline": "soft"}, {"samples": 3}),
    ("variational", "sum_and_sample", {"baseline": "soft"}, {"top": 2}),
    ("variational", "sum_and_sample", {"baseline": "none"}, {"top": 1}),
    ("variational", "sample", {"baseline": "learned"}, {}),
    ("variational", "rloo", {}, {"samples": 2}),
    ("variational", "rloo", {}, {"samples": 5}),
    ("variational", "rebar", {}, {"temperature": 0.5}),
    ("variational", "rebar", {}, {"temperature": 2.0}),
    ("hard", "rloo", {}, {"samples": 3}),
    ("hard", "rebar", {}, {"temperature": 0.5}),
    ("hard", "sample", {"baseline": "soft"}, {}),
    ("hard", "sample", {"baseline": "none"}, {}),
]


@pytest.mark.parametrize(("name", "estimator", "options", "settings"), UNBIASED)
def test_sampled_gradients_are_unbiased(name, estimator, options, settings):
    world = World(seed=4)
    torch.manual_seed(1)
    found = estimates(world, 0, 60_000, name, estimator, options, **settings)
    if options.get("baseline") == "average":  # any constant: here it starts at 0, so start elsewhere
        positions, emitter, leaves = replicated(world, 0, 60_000)
        objective = build_objective(name, estimator, EstimatorSettings(**settings), **dict(options))
        objective.baseline.average.fill_(-1.3)
        grads = torch.autograd.grad(objective(positions, emitter).loss, list(leaves.values()))
        found = dict(zip(leaves, grads, strict=True))
    formula = {"variational": variational, "hard": hard}[name]
    assert_unbiased(found, enumerated(world, 0, formula))


def test_a_biased_estimator_would_be_caught():
    world = World(seed=4)
    torch.manual_seed(1)
    found = estimates(world, 0, 60_000, "hard", "sample", {"baseline": "soft"}, reward_weight=0.9)
    with pytest.raises(AssertionError, match="prior"):
        assert_unbiased(found, enumerated(world, 0, hard))


def test_with_all_alignments_among_the_top_nothing_is_sampled():
    world = World()
    found = world.loss("variational", "sum_and_sample", {"baseline": "soft"}, top=4)
    right = world.loss("variational", "enum")
    torch.testing.assert_close(found.loss, right.loss, rtol=0, atol=1e-10)
    assert_same(world.gradients(found.loss), world.gradients(right.loss))


def bound_of_two(l, log_p, log_q):
    """The expected bound over all pairs of draws, enumerated."""
    total = 0
    for a, b in itertools.product(range(len(l)), repeat=2):
        weights = torch.stack([log_p[i] + l[i] - log_q[i] for i in (a, b)])
        total = total + (log_q[a] + log_q[b]).exp() * (weights.logsumexp(0) - math.log(2))
    return total


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        ("vimco", {}),
        ("iwae", {"baseline": "none"}),
        ("iwae", {"baseline": "soft"}),
        ("iwae", {"baseline": "learned"}),
    ],
)
def test_gradients_of_the_bound_of_many_samples_are_unbiased(estimator, options):
    world = World(seed=4)
    torch.manual_seed(2)
    found = estimates(world, 0, 60_000, "variational", estimator, options, samples=2)
    assert_unbiased(found, enumerated(world, 0, bound_of_two))


def test_leave_one_out_and_rebar_have_less_noise_than_plain_draws():
    """Summed over the posterior's scores; ten random positions. Equal numbers of draws for rloo."""
    totals = {}
    rows = [("sample", {"baseline": "none"}, {"samples": 5}), ("rloo", {}, {"samples": 5})]
    rows += [("sample", {"baseline": "none"}, {}), ("rebar", {}, {"temperature": 0.5})]
    for i, (estimator, options, settings) in enumerate(rows):
        totals[i] = 0.0
        for seed in range(10):
            world = World(seed=seed, spread=1.0)
            torch.manual_seed(seed)
            found = estimates(world, 0, 4000, "variational", estimator, options, **settings)
            totals[i] += found["posterior"].var(0).sum().item()
    assert totals[1] < totals[0] / 2, totals
    assert totals[3] < totals[2] / 2, totals


def test_many_sample_bounds_lie_between_the_elbo_and_the_evidence():
    world = World(seed=4)
    l, log_p, log_q = next(world.rows())
    torch.manual_seed(3)
    values = []
    for samples in (1, 5, 50):
        positions, emitter, _ = replicated(world, 0, 4000)
        objective = build_objective("variational", "rws", EstimatorSettings(samples=samples))
        values.append(objective(positions, emitter).report["bound"].item() / 4000)
    elbo, evidence = variational(l, log_p, log_q).item(), marginal(l, log_p, log_q).item()
    assert elbo - 0.05 < values[0] < values[1] < values[2] < evidence + 0.05


def test_rws_with_many_samples_has_the_gradients_of_the_evidence_and_of_the_inclusive_divergence():
    world = World(seed=4)
    l, log_p, log_q = next(world.rows())
    evidence = marginal(l, log_p, log_q)
    true = [(p + x - evidence).exp().detach() for x, p in zip(l, log_p, strict=True)]

    def target(l, log_p, log_q):
        inclusive = sum(t * q for t, q in zip(true, log_q, strict=True))
        return marginal(l, log_p, log_q) + inclusive

    torch.manual_seed(5)
    found = estimates(world, 0, 200, "variational", "rws", samples=4000)
    right = enumerated(world, 0, target)
    for name, draws in found.items():
        assert (draws.mean(0) - right[name]).abs().max() < 0.01, name
        assert right[name].abs().max() > 0.05, f"{name}: nothing to compare"


def test_gumbel_at_low_temperature_is_the_expectation():
    world = World(seed=4)
    l, _, log_q = next(world.rows())
    torch.manual_seed(6)
    copies = 40_000
    positions, emitter, _ = replicated(world, 0, copies)
    report = build_objective("variational", "gumbel", EstimatorSettings(temperature=0.005))(
        positions, emitter
    ).report
    right = sum((q.exp() * x).item() for x, q in zip(l, log_q, strict=True))
    spread = math.sqrt(sum((q.exp() * x**2).item() for x, q in zip(l, log_q, strict=True)) - right**2)
    assert -report["xent"].item() / copies == pytest.approx(
        right, abs=SIGMAS * spread / math.sqrt(copies) + 1e-3
    )


@pytest.mark.parametrize("hard_draws", [False, True])
def test_gumbel_draws(hard_draws):
    scores = torch.tensor([[0.5, -1.0, 0.0, float("-inf")]], dtype=DOUBLE).expand(50_000, 4)
    q = Categorical(scores)
    torch.manual_seed(7)
    draws = q.gumbel_sample(0.7, hard_draws)
    assert torch.allclose(draws.sum(1), draws.new_ones(()))
    assert (draws[:, 3] == 0).all()
    assert ((draws == 0) | (draws == 1)).all().item() == hard_draws
    share = torch.nn.functional.one_hot(draws.argmax(1), 4).double().mean(0)
    error = SIGMAS * (q.probs[0] * (1 - q.probs[0]) / len(scores)).sqrt()
    assert ((share - q.probs[0]).abs() <= error + 1e-12).all()


def test_gumbel_gradients_go_through_the_draw():
    world = World(lengths=(3, 2), steps=(1, 2))

    def loss(scores):
        world.raw_posterior = scores
        torch.manual_seed(8)
        return world.loss("variational", "gumbel", temperature=0.8).loss

    assert torch.autograd.gradcheck(loss, world.raw_posterior.detach().clone().requires_grad_())


def test_the_soft_baseline_cuts_the_variance_by_more_than_three():
    """Summed over the posterior's scores; ten random positions, each with 4,000 draws."""
    totals = {"none": 0.0, "soft": 0.0}
    for seed in range(10):
        world = World(seed=seed, spread=1.0)
        for baseline in totals:
            torch.manual_seed(seed)
            found = estimates(world, 0, 4000, "variational", "sample", {"baseline": baseline})
            totals[baseline] += found["posterior"].var(0).sum().item()
    assert totals["soft"] < totals["none"] / 3, totals


def test_summing_the_likeliest_cuts_the_variance_further():
    totals = {"sample": 0.0, "sum_and_sample": 0.0}
    for seed in range(10):
        world = World(seed=seed, spread=1.0)
        for estimator in totals:
            torch.manual_seed(seed)
            found = estimates(world, 0, 4000, "variational", estimator, {"baseline": "soft"}, top=2)
            totals[estimator] += found["posterior"].var(0).sum().item()
    assert totals["sum_and_sample"] < totals["sample"] / 2, totals


def test_the_soft_baseline_is_smoothed_as_the_rewards_are():
    """With one source word, the reward is nothing, smoothed or not."""
    world = World(lengths=(1, 1), steps=(2, 1))
    emitter = world.emitter()
    emitter.output = type(emitter.output)(world.weight, world.bias, 0.3, 0)
    report = world.objective("variational", "sample", {"baseline": "soft"})(world.positions(), emitter).report
    assert report["squared_reward"].item() < 1e-20
    assert report["xent"].item() != pytest.approx(world.loss("soft").report["xent"].item(), abs=1e-3)


def test_the_average_baseline_follows_the_rewards():
    world = World()
    objective = world.objective("variational", "sample", {"baseline": "average"})
    torch.manual_seed(0)
    first = objective(world.positions(), world.emitter()).report
    mean = -first["xent"].item() / len(world.gold)
    assert objective.baseline.average.item() == pytest.approx(0.1 * mean)


def test_a_learned_baseline_fits_what_it_should_expect_and_touches_nothing_else():
    world = World()
    objective = world.objective("variational", "sample", {"baseline": "learned"})
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)
    errors = []
    for seed in range(300):
        torch.manual_seed(seed)
        positions = world.positions()
        expected = objective.baseline(positions, world.emitter()).values
        q = torch.softmax(positions.posterior, 1)
        with torch.no_grad():
            l = world.emitter().log_likelihood(positions, world.objective("marginal").candidates(positions))
        errors.append(((q * l.log_likelihood).sum(1) - expected).square().mean().item())
        optimizer.zero_grad()
        objective(positions, world.emitter()).loss.backward()
        optimizer.step()
    assert sum(errors[-20:]) < sum(errors[:20]) / 4
    torch.manual_seed(0)
    with_network = world.gradients(world.loss("variational", "sample", {"baseline": "learned"}).loss)
    positions, emitter = world.positions(), world.emitter()
    objective = world.objective("variational", "sample", {"baseline": "learned"})
    torch.manual_seed(3)
    (of_queries,) = torch.autograd.grad(
        objective.baseline.loss(objective.baseline(positions, emitter).values, torch.zeros(6)).sum(),
        world.queries,
        allow_unused=True,
    ) or (None,)
    assert of_queries is None, "the query does not learn to be easy to predict"
    assert with_network["queries"].abs().sum() > 0


def test_what_baselines_know_is_in_the_state_dict():
    world = World()
    objective = world.objective("variational", "sample", {"baseline": "learned"})
    objective(world.positions(), world.emitter())
    state = objective.state_dict()
    assert {name.split(".")[1] for name in state} == {"average", "network"}
    other = world.objective("variational", "sample", {"baseline": "learned"})
    other.load_state_dict(state)
    assert other.baseline.average == objective.baseline.average != 0
    objective.eval()
    before = objective.baseline.average.clone()
    objective(world.positions(), world.emitter())
    assert objective.baseline.average == before, "nothing is learned in evaluation"


def test_an_average_does_not_take_in_what_is_not_finite():
    baseline = BASELINES["average"]()
    baseline.update(torch.tensor(-2.0))
    baseline.update(torch.tensor(float("nan")))
    assert baseline.average.item() == pytest.approx(-0.2)
    baseline.average.fill_(float("nan"))  # out of a file
    baseline.update(torch.tensor(-2.0))
    assert baseline.average.item() == -2, "begun anew"


# The two ways to a gradient


class Residual(World):
    def new_readout(self):
        return ResidualReadout(D, M)


@pytest.mark.parametrize("kind", [World, Residual])
@pytest.mark.parametrize("chunk", [1, 20, 10_000])
@pytest.mark.parametrize(("name", "estimator"), ALL)
def test_fused_and_recomputed_gradients_are_the_same(name, estimator, chunk, kind):
    found = {}
    for fused in (True, False):
        world = kind()
        torch.manual_seed(5)
        needs = name in ("hard", "variational") and estimator in ("sample", "sum_and_sample", "iwae")
        outcome = world.loss(
            name,
            estimator,
            {"baseline": "learned"} if needs else {},
            chunk_logits=chunk,
            fused=fused,
            samples=2,
        )
        found[fused] = outcome.loss, world.gradients(3 * outcome.loss), outcome.report
    torch.testing.assert_close(found[True][0], found[False][0], rtol=0, atol=1e-10)
    assert_same(found[True][1], found[False][1])
    assert_same(found[True][2], found[False][2])
    if kind is Residual:
        assert all(found[True][1][f"{layer}.weight"].abs().sum() > 0 for layer in ("norm", "inner", "outer"))


# Relaxed attention


def test_relaxed_bound_is_the_likelihood_of_draws_minus_the_divergence():
    world = World()
    torch.manual_seed(9)
    found = world.loss("relaxed")
    torch.manual_seed(9)
    positions = world.positions()
    draws = Dirichlet(positions.posterior).rsample()
    right = 0
    for r, n in enumerate(world.sentence):
        length = world.lengths[n]
        q, p = (
            torch.distributions.Dirichlet(scores[r, :length].exp())
            for scores in (world.raw_posterior, world.raw_prior)
        )
        context = sum(draws[r, i] * world.memory[n, i] for i in range(length))
        divergence = torch.distributions.kl_divergence(q, p) if length > 1 else 0
        right = right - (world.log_f(r, context) - divergence)
    torch.testing.assert_close(found.loss, right, rtol=0, atol=1e-9)
    assert_same(world.gradients(found.loss), world.gradients(right), atol=1e-8)


# Refinement


def test_many_steps_of_svi_reach_the_true_posterior():
    world = World(spread=0.8)
    options = {"refine": Refinement(3000, 1.0, flat=True)}
    bound, evidence = world.loss("variational", "enum", options), world.loss("marginal")
    assert bound.loss.item() == pytest.approx(evidence.loss.item(), abs=1e-6)
    gradients = world.gradients(bound.loss)
    assert (gradients.pop("posterior") == 0).all()
    right = world.gradients(evidence.loss)
    right.pop("posterior")
    assert_same(gradients, right, atol=1e-3)


def test_each_step_of_svi_is_a_step_up_the_gradient():
    world = World()
    rows = list(world.rows())
    scores = torch.zeros_like(world.raw_posterior).requires_grad_()
    value = 0
    for r, (l, log_p, _) in enumerate(rows):
        log_q = torch.log_softmax(scores[r, : len(l)], 0)
        value = value + sum(log_q[i].exp() * (l[i] + log_p[i] - log_q[i]) for i in range(len(l)))
    step = torch.autograd.grad(value, scores)[0]
    matrix = torch.zeros_like(world.raw_posterior)
    for r, (l, _, _) in enumerate(rows):
        matrix[r, : len(l)] = torch.stack(l)
    refined = Refinement(1, 0.3, flat=True)(scores, matrix.detach(), world.masked(world.raw_prior))
    torch.testing.assert_close(refined.masked_fill(world.padding, 0.0), 0.3 * step, rtol=0, atol=1e-12)


def test_savi_differentiates_its_steps():
    world = World(lengths=(3, 2), steps=(1, 2))

    def loss(scores):
        world.raw_posterior = scores
        return world.loss("variational", "enum", {"refine": Refinement(3, 0.5, flat=False)}).loss

    assert torch.autograd.gradcheck(loss, world.raw_posterior.detach().clone().requires_grad_())


def test_a_step_makes_the_bound_better():
    world = World()
    values = [
        world.loss("variational", "enum", {"refine": Refinement(steps, 0.5, flat=False)}).loss.item()
        for steps in (1, 5, 50)
    ]
    assert world.loss("variational", "enum").loss.item() > values[0] > values[1] > values[2]


# Warm-up and test time


def test_warm_up_is_soft_attention_while_the_posterior_learns_from_the_prior():
    world = World()
    outcome = warm_up(
        world.objective("soft"), world.objective("variational"), world.positions(), world.emitter()
    )
    found, soft = world.gradients(outcome.loss), world.gradients(world.loss("soft").loss)
    divergence = sum(
        q.exp() * (q - p.detach())
        for _, log_p, log_q in world.rows()
        for p, q in zip(log_p, log_q, strict=True)
    )
    fit = world.gradients(divergence)
    assert_same(found, {name: soft[name] + (fit[name] if name == "posterior" else 0) for name in soft})


def test_k_max_of_all_is_exact_and_of_fewer_is_renormalised():
    scores = torch.tensor(
        [[0.3, 2.0, -1.0, float("-inf")], [1.0, 0.0, float("-inf"), float("-inf")]], dtype=DOUBLE
    )
    prior = Categorical(scores)
    index, log_weights = prior.kmax(4)
    assert torch.allclose(log_weights.exp(), prior.probs.gather(1, index))
    index, log_weights = prior.kmax(2)
    assert index.tolist() == [[1, 0], [0, 1]]
    right = prior.probs.gather(1, index)
    torch.testing.assert_close(log_weights.exp(), right / right.sum(1, keepdim=True), rtol=0, atol=1e-12)


def test_the_soft_baseline_is_soft_attention_without_a_graph():
    world = World()
    found = SoftContext().marginals(world.positions(), world.emitter())
    assert not found.log_marginal.requires_grad
    assert -found.log_marginal.sum().item() == pytest.approx(world.loss("soft").loss.item(), abs=1e-10)


def test_deterministic_for_a_seed():
    for name, estimator in ALL:
        values = []
        for _ in range(2):
            torch.manual_seed(11)
            world = World()
            loss = world.loss(
                name,
                estimator,
                {"baseline": "soft"},
                samples=3,
            ).loss
            values.append((loss.item(), world.gradients(loss)["memory"].sum().item()))
        assert values[0] == values[1], (name, estimator)
