"""The model of visual question answering against its formulas, one question and one box at a time."""

import math
from types import SimpleNamespace

import pytest
import torch

from onmt_varattn.latent import EstimatorSettings, Exact, Inference, KMax, LatentAttention, SoftContext
from onmt_varattn.modules import GatedPosterior
from onmt_varattn.vqa.data.dataset import Batch
from onmt_varattn.vqa.model import AnswerModel
from tests.worlds import DOUBLE, build_objective, hard, marginal, variational

SIZES = SimpleNamespace(words=7, answers=5, features=4, embedding=3, query=6, attention=5, answer_embedding=2)
BOXES = (5, 3, 1)  # of the three images
WORDS = (4, 2, 3)  # of the three questions
ENUMERATED = [("soft", None), ("marginal", "enum"), ("hard", "enum"), ("variational", "enum")]


@pytest.fixture
def model():
    return build()


def new_model(score, has_posterior):
    embeddings = torch.nn.Embedding(SIZES.words, SIZES.embedding, padding_idx=0)
    reader = torch.nn.LSTM(SIZES.embedding, SIZES.query, batch_first=True)
    attention = LatentAttention(
        SIZES.query,
        SIZES.features,
        SIZES.answers,
        objective="marginal",
        score=score,
        attention_size=SIZES.attention,
    )
    posterior = None
    if has_posterior:
        posterior = GatedPosterior(
            SIZES.answers, SIZES.answer_embedding, SIZES.features, SIZES.query, SIZES.attention
        )
    return AnswerModel(embeddings, reader, attention, posterior, 0.0).to(DOUBLE)


def build(seed=0, has_posterior=True, spread=1.5):
    torch.manual_seed(seed)
    model = new_model("mlp", has_posterior)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, spread / math.sqrt(parameter.shape[-1]))
    return model


def batch(seed=1, boxes=BOXES, words=WORDS, pad_boxes=0, pad_words=0, junk=0.0):
    """Random questions; `junk` stands where there is no box."""
    generator = torch.Generator().manual_seed(seed)
    count = len(boxes)
    features = torch.full((count, max(boxes) + pad_boxes, SIZES.features), junk, dtype=DOUBLE)
    padding = torch.ones(count, max(boxes) + pad_boxes, dtype=torch.bool)
    questions = torch.zeros(count, max(words) + pad_words, dtype=torch.int64)
    for n in range(count):
        features[n, : boxes[n]] = torch.randn(boxes[n], SIZES.features, generator=generator, dtype=DOUBLE)
        padding[n, : boxes[n]] = False
        questions[n, : words[n]] = torch.randint(1, SIZES.words, (words[n],), generator=generator)
    gold = torch.randint(0, SIZES.answers, (count,), generator=generator)
    return Batch(list(range(count)), questions, torch.tensor(words), features, padding, gold)


def lstm_state(model, words):
    """The last state of the LSTM, a gate at a time."""
    reader = model.reader
    h = c = torch.zeros(SIZES.query, dtype=DOUBLE)
    for word in words:
        gates = reader.weight_ih_l0 @ model.embeddings.weight[word] + reader.bias_ih_l0
        gates = gates + reader.weight_hh_l0 @ h + reader.bias_hh_l0
        i, f, g, o = gates.chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h


class Oracle:
    """Everything of one question, by loops."""

    def __init__(self, model, batch, n):
        count = int((~batch.padding[n]).sum())
        self.model, self.boxes = model, batch.features[n, :count]
        self.query = lstm_state(model, batch.questions[n, : batch.lengths[n]].tolist())
        self.gold = int(batch.gold[n])
        score, q = model.attention.score, self.query
        self.prior = torch.stack([
            score.weight.weight[0] @ torch.tanh(score.query.weight @ q + score.query.bias + score.memory.weight @ x)
            for x in self.boxes
        ])  # fmt: skip
        self.log_p = torch.log_softmax(self.prior, 0)
        if model.posterior is not None:
            self.log_q = torch.log_softmax(self.posterior(self.gold), 0)

    def posterior(self, answer):
        net, q = self.model.posterior, self.query
        h = net.answer.weight[answer]
        on_box = torch.relu(net.gate_box.weight @ h + net.gate_box.bias)
        on_query = torch.relu(net.gate_query.weight @ h + net.gate_query.bias)
        return torch.stack([
            net.weight.weight[0] @ torch.tanh(
                net.box.weight @ (x * on_box) + net.query.weight @ (q * on_query) + net.query.bias
            )
            for x in self.boxes
        ])  # fmt: skip

    def log_f(self, context):
        """Log probabilities of all answers: V."""
        readout, words = self.model.attention.readout, self.model.attention.words
        state = torch.tanh(
            readout.query.weight @ self.query + readout.query.bias + readout.context.weight @ context
        )
        return torch.log_softmax(words.weight @ state + words.bias, 0)

    def value(self, name):
        if name == "soft":
            return self.log_f(sum(p * x for p, x in zip(self.log_p.exp(), self.boxes, strict=True)))[
                self.gold
            ]
        l = [self.log_f(x)[self.gold] for x in self.boxes]
        formula = {"marginal": marginal, "hard": hard, "variational": variational}[name]
        log_q = list(self.log_q) if self.model.posterior is not None else list(self.log_p)
        return formula(l, list(self.log_p), log_q)


def loss(model, batch, name, estimator, settings=None, **options):
    objective = build_objective(name, estimator, settings or EstimatorSettings(), **options)
    return objective(model(batch), model.attention.emitter())


def gradients(model, value):
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if grad is None else grad
        for (name, parameter), grad in zip(parameters.items(), found, strict=True)
    }


def test_queries_prior_posterior_and_contexts_follow_their_formulas(model):
    questions = batch()
    positions = model(questions)
    for n, count in enumerate(BOXES):
        oracle = Oracle(model, questions, n)
        torch.testing.assert_close(positions.queries[n], oracle.query)
        torch.testing.assert_close(positions.prior[n, :count], oracle.prior)
        torch.testing.assert_close(positions.posterior[n, :count], oracle.posterior(oracle.gold))
        torch.testing.assert_close(positions.contexts[n], oracle.log_p.exp() @ oracle.boxes)
        assert positions.prior[n, count:].eq(-math.inf).all()
        assert positions.posterior[n, count:].eq(-math.inf).all()


@pytest.mark.parametrize(("name", "estimator"), ENUMERATED)
def test_losses_and_all_their_gradients_are_those_of_the_formulas(model, name, estimator):
    questions = batch()
    found = loss(model, questions, name, estimator).loss
    expected = -sum(Oracle(model, questions, n).value(name) for n in range(len(BOXES)))
    torch.testing.assert_close(found, expected)
    own, right = gradients(model, found), gradients(model, expected)
    for parameter in own:
        torch.testing.assert_close(own[parameter], right[parameter], msg=lambda m, p=parameter: f"{p}: {m}")
    moved = {p for p in own if own[p].abs().sum() > 0}
    assert any(p.startswith("posterior.") for p in moved) == (name == "variational")
    assert {
        "embeddings.weight",
        "reader.weight_hh_l0",
        "attention.score.memory.weight",
        "attention.readout.context.weight",
    } <= moved


@pytest.mark.parametrize(
    ("name", "estimator", "settings"),
    [("hard", "sample", {}), ("variational", "sample", {}), ("variational", "sum_and_sample", {"top": 1})],
)
def test_sampled_gradients_are_right_on_average(model, name, estimator, settings):
    """Along 20 random directions, the mean of 40 draws for 75 copies of the questions is within 6 standard
    errors: with 39 degrees of freedom a right estimator fails once in 100,000 runs."""
    questions, copies = batch(), 75
    exact = gradients(model, loss(model, questions, name, "enum").loss)
    generator = torch.Generator().manual_seed(3)
    directions = [
        {p: torch.randn(g.shape, generator=generator, dtype=DOUBLE) for p, g in exact.items()}
        for _ in range(20)
    ]
    many = Batch(
        questions.index * copies, questions.questions.repeat(copies, 1), questions.lengths.repeat(copies),
        questions.features.repeat(copies, 1, 1), questions.padding.repeat(copies, 1), questions.gold.repeat(copies),
    )  # fmt: skip
    torch.manual_seed(4)
    draws = []
    for _ in range(40):
        value = loss(model, many, name, estimator, EstimatorSettings(**settings)).loss / copies
        drawn = gradients(model, value)
        draws.append([sum((drawn[p] * d[p]).sum() for p in drawn).item() for d in directions])
    draws = torch.tensor(draws, dtype=DOUBLE)
    right = torch.tensor(
        [sum((exact[p] * d[p]).sum() for p in exact).item() for d in directions], dtype=DOUBLE
    )
    z = (draws.mean(0) - right) / (draws.std(0) / math.sqrt(len(draws)))
    assert draws.std(0).min() > 0
    assert z.abs().max() < 6


@pytest.mark.parametrize(("name", "estimator"), ENUMERATED)
def test_neither_padding_nor_what_stands_in_it_matters(model, name, estimator):
    plain, padded = batch(), batch(pad_boxes=4, pad_words=3, junk=7.0)
    found, other = (loss(model, questions, name, estimator).loss for questions in (plain, padded))
    torch.testing.assert_close(found, other)
    own, others = gradients(model, found), gradients(model, other)
    for parameter in own:
        torch.testing.assert_close(own[parameter], others[parameter])


@pytest.mark.parametrize(("name", "estimator"), ENUMERATED)
def test_a_batch_is_the_sum_of_its_questions_in_any_order(model, name, estimator):
    questions = batch()
    whole = loss(model, questions, name, estimator).loss

    def pick(rows):
        index = torch.tensor(rows)
        return Batch(
            rows, questions.questions[index], questions.lengths[index], questions.features[index],
            questions.padding[index], questions.gold[index],
        )  # fmt: skip

    alone = sum(loss(model, pick([n]), name, estimator).loss for n in (2, 0, 1))
    torch.testing.assert_close(whole, alone)
    torch.testing.assert_close(whole, loss(model, pick([1, 2, 0]), name, estimator).loss)


def test_all_objectives_have_the_same_generative_parameters():
    torch.manual_seed(5)
    without = new_model("mlp", False)
    torch.manual_seed(5)
    with_network = new_model("mlp", True)
    other = with_network.state_dict()
    for name, value in without.state_dict().items():
        assert torch.equal(value, other[name])
    assert {name.split(".")[0] for name in other.keys() - without.state_dict().keys()} == {"posterior"}


@pytest.mark.parametrize("chunk_logits", [1, 20, 2**20])
@pytest.mark.parametrize("test", [SoftContext(), Exact(), KMax(2)])
def test_answers_are_the_mixture_over_boxes(model, test, chunk_logits):
    questions = batch()
    emitter = model.attention.emitter()
    emitter.chunk_logits = chunk_logits
    objective = build_objective("variational", "enum", EstimatorSettings())
    mixture = Inference(model(questions), emitter, objective, every_word=True).mixture(test)
    found = mixture.log_probs
    torch.testing.assert_close(mixture.log_marginal, found.gather(1, questions.gold.unsqueeze(1)).squeeze(1))
    for n in range(len(BOXES)):
        oracle = Oracle(model, questions, n)
        weights = oracle.log_p.exp()
        if test.name == "soft":
            expected = oracle.log_f(weights @ oracle.boxes).exp()
        else:
            kept = weights.topk(min(getattr(test, "k", 99), len(weights)))
            shares = kept.values / kept.values.sum()
            expected = sum(
                share * oracle.log_f(oracle.boxes[i]).exp()
                for share, i in zip(shares, kept.indices, strict=True)
            )
        torch.testing.assert_close(found[n].exp(), expected)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(3, dtype=DOUBLE))


def test_the_exact_posterior_and_the_bound(model):
    questions = batch()
    objective = build_objective("variational", "enum", EstimatorSettings())
    inference = Inference(model(questions), model.attention.emitter(), objective)
    bound = inference.bound()
    for n, count in enumerate(BOXES):
        oracle = Oracle(model, questions, n)
        joint = torch.stack(
            [p + oracle.log_f(x)[oracle.gold] for p, x in zip(oracle.log_p, oracle.boxes, strict=True)]
        )
        torch.testing.assert_close(inference.exact_posterior.probs[n, :count], torch.softmax(joint, 0))
        torch.testing.assert_close(bound["elbo"][n], oracle.value("variational"))
        q = oracle.log_q.exp()
        torch.testing.assert_close(bound["kl"][n], (q * (oracle.log_q - oracle.log_p)).sum())
        torch.testing.assert_close(bound["posterior_entropy"][n], -(q * oracle.log_q).sum())


def test_a_draw_does_not_project_boxes_that_were_not_drawn(model):
    """With one draw a question the emission sees one box a question; with all boxes, each once."""
    questions, seen = batch(), []
    model.attention.readout.context.register_forward_hook(
        lambda module, inputs, output: seen.append(inputs[0][..., 0].numel())
    )
    loss(model, questions, "variational", "sample", EstimatorSettings(samples=1), baseline="none")
    assert seen == [3]
    seen.clear()
    loss(model, questions, "variational", "enum")
    assert seen == [3 * max(BOXES)]


@pytest.mark.parametrize("score", ["mlp", "general", "scaled_dot"])
def test_every_score_can_be_trained(score):
    torch.manual_seed(0)
    model = new_model(score, True)
    found = gradients(model, loss(model, batch(), "variational", "enum").loss)
    assert all(found[name].abs().sum() > 0 for name in found if name.startswith("attention.score."))
