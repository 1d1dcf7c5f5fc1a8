"""The drop-in module: right, whatever the batch looks like, and clear about what is wrong with it."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from onmt_varattn.latent import (
    OBJECTIVES,
    READOUTS,
    Categorical,
    Exact,
    KMax,
    LatentAttention,
    Refinement,
    Samples,
    Schedule,
    SoftContext,
)
from onmt_varattn.latent.attention import CHECKED_CALLS
from tests.unit.test_likelihood import Largest
from tests.worlds import new_estimator

pytestmark = pytest.mark.torch_only

D, M, V, N, T, S = 4, 3, 7, 3, 5, 6
DOUBLE = torch.float64
LENGTHS, WORDS = (6, 2, 4), (5, 3, 1)  # of source and target


def build(seed=0, **options):
    torch.manual_seed(seed)
    attention = LatentAttention(D, M, V, **{"objective": "marginal", **options}).to(DOUBLE)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(0, 0.8)
    return attention


def batch(seed=1):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=DOUBLE)

    padding = torch.tensor([[i >= length for i in range(S)] for length in LENGTHS])
    gold = torch.randint(0, V, (N, T), generator=generator)
    for n, words in enumerate(WORDS):
        gold[n, words:] = -100
    return {
        "queries": random(N, T, D).requires_grad_(),
        "memory": random(N, S, M).requires_grad_(),
        "gold": gold,
        "memory_padding": padding,
        "posterior": random(N, T, S).requires_grad_(),
    }


def loops(attention, data):
    """log p, l and log q of each real position, one alignment at a time."""
    readout, score = attention.readout, attention.score
    for n in range(N):
        for t in range(WORDS[n]):
            q = data["queries"][n, t]
            vectors = list(data["memory"][n, : LENGTHS[n]])
            if attention.null is not None:
                vectors.append(attention.null)
            scores = torch.stack([
                score.weight.weight[0] @ torch.tanh(score.query.weight @ q + score.query.bias + score.memory.weight @ x)
                for x in vectors
            ])  # fmt: skip
            l = []
            for x in vectors:
                state = torch.tanh(readout.query(q) + readout.context(x))
                logits = attention.output_layer.weight @ state + attention.output_layer.bias
                l.append((logits - logits.logsumexp(0))[data["gold"][n, t]])
            posterior = data["posterior"][n, t, : LENGTHS[n]]
            if attention.null is not None:
                posterior = torch.cat([posterior, data["posterior"][n, t, -1:]])
            yield torch.log_softmax(scores, 0), torch.stack(l), torch.log_softmax(posterior, 0)


FORMULAS = {
    "marginal": lambda p, l, q: (p + l).logsumexp(0),
    "hard": lambda p, l, q: (p.exp() * l).sum(),
    "variational": lambda p, l, q: (q.exp() * (l + p - q)).sum(),
}


def gradients(attention, data, loss):
    leaves = {**dict(attention.named_parameters()), **{k: v for k, v in data.items() if v.requires_grad}}
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_loss_and_gradients_are_those_of_the_formulas(name, null):
    attention, data = build(objective=name, estimator="enum", null=null), batch()
    if null:
        data["posterior"] = torch.cat([data["posterior"].detach(), torch.ones(N, T, 1, dtype=DOUBLE)], 2)
        data["posterior"].requires_grad_()
    found = attention(**data)
    rows = [FORMULAS[name](*row) for row in loops(attention, data)]
    right = -torch.stack(rows).mean()
    assert found.positions == sum(WORDS) == len(rows)
    torch.testing.assert_close(found.loss, right, rtol=0, atol=1e-12)
    for (key, one), other in zip(
        gradients(attention, data, found.loss).items(),
        gradients(attention, data, right).values(),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12, msg=key)
    assert found.report["log_likelihood"] == pytest.approx(-right.item(), abs=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)])
def test_any_leading_shape_is_the_sum_of_its_sentences(shape):
    attention, data = build(), batch()
    rows = [i % N for i in range(math.prod(shape))]
    many = {
        name: torch.stack([value[i] for i in rows]).view(*shape, *value.shape[1:])
        for name, value in data.items()
    }
    alone = sum(attention(**{k: v[i : i + 1] for k, v in data.items()}).total for i in rows)
    torch.testing.assert_close(attention(**many).total, alone, rtol=0, atol=1e-12)
    log_probs = attention.log_probs(many["queries"], many["memory"], memory_padding=many["memory_padding"])
    assert log_probs.shape == (*shape, T, V)


def test_padding_and_what_stands_there_do_not_matter():
    attention, data = build(objective="variational", estimator="enum"), batch()
    right = attention(**data).total
    changed = {name: value.detach().clone() for name, value in data.items()}
    for n in range(N):
        changed["memory"][n, LENGTHS[n] :] = 1e3
        changed["queries"][n, WORDS[n] :] = -1e3
        changed["posterior"][n, :, LENGTHS[n] :] = float("nan")
    torch.testing.assert_close(attention(**changed).total, right, rtol=0, atol=1e-12)


def test_batch_first_is_meant():
    """As many sentences as words: another sentence's memory would do, if time came first."""
    attention = build()
    data = {k: v[:, :3] if k in ("queries", "gold", "posterior") else v for k, v in batch().items()}
    alone = attention(**{k: v[1:2] for k, v in data.items()}).total
    others = attention(**{k: v[[0, 2]] for k, v in data.items()}).total
    torch.testing.assert_close(attention(**data).total, alone + others, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixture", [None, Exact(), KMax(2), SoftContext()])
def test_log_probs_are_the_mixture(mixture):
    attention, data = build(), batch()
    given = {k: data[k] for k in ("queries", "memory", "memory_padding")}
    found = attention.log_probs(**given, mixture=mixture)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(N, T, dtype=DOUBLE), rtol=0, atol=1e-12)
    rows = list(loops(attention, data))
    row = 0
    for n in range(N):
        for t in range(WORDS[n]):
            p, l, _ = rows[row]
            row += 1
            kept = p.argsort(descending=True)[: mixture.k] if isinstance(mixture, KMax) else slice(None)
            right = (torch.log_softmax(p[kept], 0) + l[kept]).logsumexp(0)
            if not isinstance(mixture, SoftContext):
                torch.testing.assert_close(found[n, t, data["gold"][n, t]], right, rtol=0, atol=1e-12)
    assert row == len(rows)


def test_mixtures_by_samples_come_from_the_objectives_own_prior():
    for name in ("dirichlet", "logistic_normal", "concrete"):
        attention = build(objective="relaxed", relaxed=name)
        mixture = attention.objective.mixture(3)
        assert isinstance(mixture, Samples)
        assert type(mixture.distribution(torch.zeros(2, 3))).__name__.lower() == name.replace("_", "")


def test_steps_with_a_prepared_memory_are_the_same_as_all_at_once():
    attention, data = build(objective="variational", estimator="enum", null=True), batch()
    posterior = torch.cat([data["posterior"], torch.zeros(N, T, 1, dtype=DOUBLE)], 2)
    memory = attention.prepare(data["memory"], data["memory_padding"])
    steps = [attention.step(data["queries"][:, t], memory) for t in range(T)]
    contexts, prior = (torch.stack(parts, 1) for parts in zip(*steps, strict=True))
    rest = {"gold": data["gold"], "posterior": posterior}
    stepped = attention(data["queries"], memory, prior=prior, contexts=contexts, **rest)
    whole = attention(data["queries"], data["memory"], memory_padding=data["memory_padding"], **rest)
    torch.testing.assert_close(stepped.total, whole.total, rtol=0, atol=1e-12)
    inner = Categorical(prior).probs @ memory.vectors
    torch.testing.assert_close(contexts, inner, rtol=0, atol=1e-12)


def test_inference_has_prior_posteriors_and_the_bound_below_the_likelihood():
    attention, data = build(objective="variational", estimator="enum"), batch()
    found = attention.infer(**data)
    every = {
        kind: found.positions.spread(found.distribution(kind).probs)
        for kind in ("prior", "posterior", "exact")
    }
    elbo = found.positions.spread(found.bound()["elbo"])
    rows = iter(loops(attention, data))
    for n in range(N):
        for t in range(WORDS[n]):
            p, l, q = next(rows)
            right = {"prior": p.exp(), "posterior": q.exp(), "exact": (p + l).softmax(0)}
            for kind, values in right.items():
                torch.testing.assert_close(every[kind][n, t, : LENGTHS[n]], values, rtol=0, atol=1e-12)
            torch.testing.assert_close(elbo[n, t], (q.exp() * (l + p - q)).sum(), rtol=0, atol=1e-12)
        assert all((probs[n, WORDS[n] :] == 0).all() for probs in every.values())
    assert (found.bound()["elbo"] <= found.enumerated.log_marginal + 1e-12).all()


ERRORS = {
    "queries": lambda d: d | {"queries": d["queries"][..., :-1]},
    "memory": lambda d: d | {"memory": d["memory"][..., :-1]},
    "gold": lambda d: d | {"gold": d["gold"].t()},
    "memory_padding": lambda d: d | {"memory_padding": d["memory_padding"][:, :-1]},
    "posterior": lambda d: d | {"posterior": d["posterior"].transpose(0, 1)},
    "gold ": lambda d: d | {"gold": d["gold"].clamp(min=0).double()},
    "gold  ": lambda d: d | {"gold": d["gold"].clamp(min=0) + V},
    "memory_padding ": lambda d: d | {"memory_padding": torch.ones(N, S, dtype=torch.bool)},
    "memory_padding  ": lambda d: d | {"memory_padding": d["memory_padding"].double()},
    "posterior ": lambda d: d | {"posterior": d["posterior"] * float("nan")},
    "posterior  ": lambda d: (
        d | {"posterior": d["posterior"].masked_fill(d["memory_padding"].unsqueeze(1), -math.inf).softmax(-1)}
    ),
    "posterior   ": lambda d: d | {"posterior": None},
    "memory ": lambda d: d | {"memory": d["memory"].transpose(0, 1)},
    "gold   ": lambda d: d | {"gold": d["gold"] > 0},
    "gold    ": lambda d: d | {"gold": d["gold"].tolist()},
    "queries ": lambda d: d | {"queries": d["queries"].tolist()},
    "memory   ": lambda d: d | {"memory": None},
    "contexts": lambda d: d | {"contexts": torch.zeros(N, T, M, dtype=DOUBLE)},
    "memory  ": lambda d: d | {"memory": d["memory"][:, :0], "memory_padding": None},
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("argument", ERRORS)
def test_what_is_wrong_is_named(argument, training):
    attention = build(objective="variational").train(training)
    with pytest.raises(ValueError, match=rf"^{argument.strip()}: "):
        attention(**ERRORS[argument](batch()))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_of_nothing_but_padding_has_no_loss(name, fused):
    attention, data = build(objective=name), batch()
    attention.objective.fused = fused
    found = attention(**data | {"gold": torch.full((N, T), -100)})
    found.loss.backward()
    assert found.positions == 0
    assert found.loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in attention.parameters())
    assert attention.infer(**data | {"gold": torch.full((N, T), -100)}).enumerated.log_marginal.shape == (0,)


def test_the_temperature_of_draws_is_the_one_that_is_set():
    attention = build(objective="variational", estimator="gumbel", temperature=0.01)
    torch.manual_seed(0)
    attention(**batch())
    assert attention.objective.estimator.settings.temperature == 0.01
    drawn = []
    plain = attention.objective.estimator.draw
    attention.objective.estimator.draw = lambda q: drawn.append(plain(q)) or drawn[-1]
    attention(**batch())
    assert (drawn[0].amax(1) > 0.99).double().mean() > 0.9, "nearly one position each"


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("objective", {"objective": "fuzzy"}),
        ("estimator", {"objective": "marginal", "estimator": "sample"}),
        ("baseline", {"objective": "variational", "baseline": "good"}),
        ("baseline", {"objective": "marginal", "baseline": "soft"}),
        ("score", {"score": "cosine"}),
        ("readout", {"readout": "deep"}),
        ("smaples", {"smaples": 3}),
        ("samples", {"objective": "variational", "estimator": "vimco", "samples": 1}),
        ("label_smoothing", {"objective": "marginal", "label_smoothing": 0.1}),
        ("warm_up_steps", {"warm_up_steps": "soon"}),
        ("warm_up_steps", {"warm_up_steps": True}),
        ("attention_size", {"attention_size": -1}),
        ("samples", {"objective": "variational", "samples": 2.5}),
        ("unpredicted", {"unpredicted": 99}),
        ("refine", {"objective": "variational", "estimator": "sample", "refine": Refinement(1, 1.0, False)}),
        ("entropy_weight", {"objective": "relaxed", "entropy_weight": 0.1}),
        ("temperature", {"temperature": 0.0}),
        ("temperature", {"temperature": float("nan")}),
        ("top", {"top": 0}),
        ("sparse", {"sparse": "softmax"}),
        ("relaxed", {"objective": "relaxed", "relaxed": "gaussian"}),
        ("kl_weight", {"kl_weight": -1.0}),
        ("label_smoothing", {"objective": "soft", "label_smoothing": 1.5}),
    ],
)
def test_wrong_settings_are_named(argument, options):
    with pytest.raises(ValueError, match=rf"^{argument}: "):
        LatentAttention(D, M, V, **{"objective": "marginal", **options})


def test_there_must_be_an_output_layer():
    attention = LatentAttention(D, M, None, objective="marginal")
    with pytest.raises(ValueError, match=r"^words: "):
        attention.log_probs(torch.zeros(1, 1, D), torch.zeros(1, 1, M))
    layer = nn.Linear(D, V, bias=False)
    attention.use_output_layer(layer)
    assert attention.log_probs(torch.zeros(1, 1, D), torch.zeros(1, 1, M)).shape == (1, 1, V)
    assert not any("words" in name or "output" in name for name in attention.state_dict())


def test_an_output_layer_is_of_the_right_kind_and_the_only_one():
    with pytest.raises(ValueError, match=r"^words: "):
        build().use_output_layer(nn.Linear(D, V))
    for layer in (nn.Linear(D + 1, V), nn.Embedding(V, D)):
        with pytest.raises(ValueError, match=r"^layer: "):
            LatentAttention(D, M, None, objective="marginal").use_output_layer(layer)


@pytest.mark.parametrize("mixture", ["kmax5", Samples(3)])
def test_a_mixture_that_the_model_does_not_have_is_named(mixture):
    with pytest.raises(ValueError, match=r"^mixture: "):
        build().log_probs(batch()["queries"], batch()["memory"], mixture=mixture)


@pytest.mark.parametrize(("kind", "number"), [(KMax, 0), (KMax, 2.0), (Samples, 0)])
def test_mixtures_of_nothing_are_refused(kind, number):
    with pytest.raises(ValueError, match=r"^(k|samples): "):
        kind(number)


def test_there_is_no_bound_without_a_posterior():
    found = build().infer(**batch() | {"posterior": None})
    with pytest.raises(ValueError, match=r"^posterior: "):
        found.bound()


def test_words_that_are_padding_elsewhere_are_words_in_log_probs():
    data = batch()
    given = {k: data[k] for k in ("queries", "memory", "memory_padding")}
    found = [build(ignore_index=index).log_probs(**given) for index in (-100, 0)]
    torch.testing.assert_close(found[0], found[1])


def test_no_mass_of_a_given_prior_is_on_padding():
    attention, data = build(), batch()
    _, scores = attention.step(data["queries"], attention.prepare(data["memory"]))  # nobody masked these
    found, right = attention(**data, prior=scores), attention(**data)
    torch.testing.assert_close(found.total, right.total)


@pytest.mark.parametrize("fused", [True, False])
def test_an_emitter_gives_each_call_its_own_gradient(fused):
    attention, data = build(), batch()
    attention.objective.fused = fused
    given = [data[k] for k in ("queries", "memory", "gold", "memory_padding")]
    emitter, found = attention.emitter(), []
    for _ in range(2):
        loss = attention.objective(attention._batch(*given, None, None, None), emitter).loss
        found.append(torch.autograd.grad(loss, attention.words.weight)[0])
    torch.testing.assert_close(found[0], found[1])
    positions = attention._batch(*given, None, None, None)
    words = emitter.log_likelihood(positions, attention.objective.candidates(positions))
    assert torch.autograd.grad(words.log_likelihood.sum(), attention.words.weight)[0].abs().sum() > 0


def test_a_prepared_memory_may_be_used_before_and_after_gradients():
    attention, data = build(), batch()
    memory = attention.prepare(data["memory"], data["memory_padding"])
    first = attention.log_probs(data["queries"], memory)
    attention(data["queries"], memory, data["gold"]).loss.backward()
    assert attention.readout.context.weight.grad.abs().sum() > 0
    torch.testing.assert_close(attention.log_probs(data["queries"], memory), first)


def test_inference_mode_leaves_nothing_behind():
    attention, data = build(), batch()
    with torch.inference_mode():
        attention.log_probs(data["queries"].detach(), data["memory"].detach())
    attention(**data).loss.backward()
    assert attention.words.weight.grad.abs().sum() > 0


def test_threads_do_not_share_their_logits():
    attention, data = build(), batch()
    many = {k: data[k].detach().repeat(40, 1, 1) for k in ("queries", "memory")}
    right = attention.log_probs(**many)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: attention.log_probs(**many), range(60)))
    assert all(torch.equal(one, right) for one in found)


def test_copies_and_files_compute_the_same(tmp_path):
    attention, data = build(objective="variational", estimator="enum", warm_up_steps=2), batch()
    right = attention.eval()(**data).total
    torch.save(attention, tmp_path / "module.pt")
    loaded = torch.load(tmp_path / "module.pt", weights_only=False)
    for other in (copy.deepcopy(attention), loaded):
        torch.testing.assert_close(other(**data).total, right)
        assert other.scheduled.objective is other.objective


def test_a_second_derivative_is_refused_where_gradients_are_known_beforehand():
    attention, data = build(), batch()
    loss = attention(**data).loss
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        torch.autograd.grad(loss, data["memory"], create_graph=True)


def test_checks_look_at_values_only_a_few_times_where_the_device_would_have_to_wait(monkeypatch):
    attention, data = build(), batch()
    looks = []
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    plain = torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: looks.append(1) or plain(self))
    for _ in range(CHECKED_CALLS):
        attention(**data)
    assert looks
    looks.clear()
    attention(**data)
    assert not looks


def test_no_logits_are_kept_and_none_exceed_a_chunk():
    """Where they are recomputed: nothing as wide as the vocabulary waits for the backward pass."""
    attention, data = build(chunk_logits=2 * S * V, score="general"), batch()
    attention.objective.fused = False
    kept = []
    with (
        Largest(but=()) as largest,
        torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(tuple(x.shape)) or x, lambda x: x),
    ):
        loss = attention(**data).loss
        assert kept
        assert not [shape for shape in kept if shape[-1:] == (V,) and len(shape) > 1]
        loss.backward()
    assert largest.size <= N * T * S < sum(s * t for s, t in zip(LENGTHS, WORDS, strict=True)) * V


def test_the_engine_by_finite_differences():
    """l itself, as an ordinary tensor, whatever is made of it; with dropout, whose draws are repeated."""
    attention, data = build(dropout=0.3, chunk_logits=4 * V), batch()

    def value(queries, memory, weight):
        torch.manual_seed(3)
        output = attention.emitter()
        output.output.weight = weight
        output.output.narrow_weight = weight.detach()
        positions = attention._batch(queries, memory, data["gold"], data["memory_padding"], None, None, None)
        words = output.log_likelihood(positions, attention.objective.candidates(positions))
        return (words.log_likelihood.sin() * torch.arange(1, S + 1)).sum(0)  # not a sum over positions

    leaves = [data["queries"], data["memory"], attention.words.weight.detach().clone().requires_grad_()]
    assert torch.autograd.gradcheck(value, leaves)


def test_the_engine_under_autocast_stays_close():
    attention, data = (
        build().float(),
        {k: v.float() if v.is_floating_point() else v for k, v in batch().items()},
    )
    data = {k: v.detach().requires_grad_() if k in ("queries", "memory") else v for k, v in data.items()}
    attention.objective.fused = False
    exact = attention(**data).loss
    (right,) = torch.autograd.grad(exact, data["memory"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = attention(**data).loss
    (found,) = torch.autograd.grad(narrow, data["memory"])
    assert narrow.dtype == found.dtype == torch.float32
    assert narrow.item() != exact.item()
    assert (found - right).norm() < 3e-2 * right.norm()


@pytest.mark.parametrize("name", READOUTS)
def test_readouts_are_modules_with_one_dropout(name):
    attention, data = build(readout=name, dropout=0.5), batch()
    torch.manual_seed(0)
    first, second = attention(**data).loss, attention(**data).loss
    assert first.item() != second.item()
    attention.eval()
    assert attention(**data).loss.item() == attention(**data).loss.item()
    assert {module.p for module in attention.modules() if isinstance(module, nn.Dropout)} == {0.5}


def test_the_residual_readout_is_the_second_half_of_a_transformer_layer():
    readout = READOUTS["residual"](D, M).to(DOUBLE)
    query, context = torch.randn(2, D, dtype=DOUBLE), torch.randn(2, M, dtype=DOUBLE)
    found = readout(readout.project_query(query), readout.project_context(context))
    h = query + nn.functional.linear(context, readout.context.weight, readout.context.bias)

    def norm(x, layer):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias

    inner = (norm(h, readout.norm) @ readout.inner.weight.t() + readout.inner.bias).clamp(min=0)
    right = norm(h + inner @ readout.outer.weight.t() + readout.outer.bias, readout.last_norm)
    torch.testing.assert_close(found, right, rtol=0, atol=1e-12)
    inside = {id(p) for p in readout.combining_parameters()}
    assert inside == {id(p) for n, p in readout.named_parameters() if not n.startswith("context.")}


def test_the_module_counts_its_own_warm_up_and_saves_it():
    attention, data = build(objective="variational", estimator="enum", warm_up_steps=3), batch()
    soft = build(objective="soft")
    soft.load_state_dict({k: v for k, v in attention.state_dict().items() if "start" not in k})
    right = soft(**data).sums["log_likelihood"]
    values = []
    for _ in range(5):
        values.append(attention(**data).sums["log_likelihood"].item())
        saved = copy.deepcopy(attention.state_dict())
    assert values[:3] == pytest.approx([right.item()] * 3, abs=1e-12)
    assert values[3] == values[4] != pytest.approx(values[0], abs=1e-6)
    other = build(objective="variational", estimator="enum", warm_up_steps=3)
    other.load_state_dict(saved)
    assert other.scheduled.step == 6
    assert other(**data).sums["log_likelihood"].item() == values[4]
    attention.eval()
    attention(**data)
    assert attention.scheduled.step == 6, "evaluation is no step"


def test_the_automatic_start_switches_when_alignments_have_formed():
    """Sharp and different alignments from the first step: the curve is level once there is one."""
    options = {"objective": "variational", "estimator": "enum", "score": "general"}
    attention = build(**options, warm_up_steps="auto")
    data = batch()
    with torch.no_grad():
        attention.score.memory.weight.copy_(100 * torch.randn(D, M, dtype=DOUBLE))
    data["posterior"] = 50 * data["posterior"].detach()
    steps = 0
    while attention.scheduled.warming_up and steps < 100:
        attention(**data)
        steps += 1
    assert 19 <= steps < 60
    state = attention.state_dict()["start._extra_state"]
    assert state["start"]["end"] == steps


@pytest.mark.parametrize("warm_up_steps", [0, 5])
def test_nothing_is_learned_in_evaluation(warm_up_steps):
    attention = build(objective="variational", baseline="average", warm_up_steps=warm_up_steps)
    with torch.no_grad():
        attention.objective.baseline.average.zero_()
    attention.eval()(**batch())
    assert attention.objective.baseline.average == 0
    attention.train()(**batch())
    assert attention.objective.baseline.average != 0


def test_a_caller_may_drive_the_schedule():
    attention = build(objective="variational", estimator="enum")
    attention.schedule(Schedule(warm_up_steps=2))
    assert attention.start is None
    data = batch()
    values = []
    for step in (1, 2, 3):
        attention.scheduled.step = step
        values.append(attention(**data).total.item())
    assert values[0] == values[1] != values[2]
    assert attention.scheduled.step == 3
    smooth = build(objective="hard", estimator="enum", label_smoothing=0.1)
    with pytest.raises(ValueError, match=r"^label_smoothing: "):
        smooth.schedule(Schedule(3, warm_up_objective="marginal"))


def test_all_parameters_learn_with_every_objective():
    for name, kind in OBJECTIVES.items():
        for estimator in kind.estimators:
            attention, data = build(objective=name, estimator=estimator, null=True), batch()
            data["posterior"] = torch.cat([data["posterior"].detach(), torch.zeros(N, T, 1, dtype=DOUBLE)], 2)
            attention(**data).loss.backward()
            assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in attention.parameters()), (
                name,
                estimator,
            )


def test_a_new_estimator_is_one_class():
    """Trained with an enumeration that only its own class knows of, a model is that of `enum`."""
    with new_estimator() as name:
        assert name in OBJECTIVES["variational"].estimators
        with pytest.raises(ValueError, match=r"^estimator: "):
            build(objective="hard", estimator=name)
        trained = {}
        for estimator in ("enum", name):
            attention, data = build(objective="variational", estimator=estimator), batch()
            optimizer = torch.optim.SGD(attention.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                attention(**data).loss.backward()
                optimizer.step()
            trained[estimator] = attention.state_dict()
    assert not torch.equal(trained["enum"]["words.weight"], build().state_dict()["words.weight"])
    for key, value in trained["enum"].items():
        torch.testing.assert_close(trained[name][key], value, rtol=0, atol=1e-12)
