"""A small latent alignment world in float64, and plain loops over it as an oracle."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from onmt_varattn.latent import (
    BASELINES,
    ESTIMATORS,
    OBJECTIVES,
    AdditiveReadout,
    Candidates,
    Emitter,
    Estimator,
    EstimatorSettings,
    Memory,
    OutputLayer,
    Positions,
)

LENGTHS = (4, 2, 1)  # source words of the three sentences
STEPS = (2, 3, 1)  # target words
D, M, V = 3, 4, 6
DOUBLE = torch.float64


def build_objective(name, estimator, settings, **options):
    """An objective with one of its estimators (its default for None)."""
    objective = OBJECTIVES[name]
    chosen = objective.estimators[estimator or next(iter(objective.estimators))]
    if isinstance(options.get("baseline"), str):
        options["baseline"] = BASELINES[options["baseline"]](D).to(DOUBLE)
    return objective(ESTIMATORS[chosen](settings), **options)


@contextmanager
def new_estimator() -> Iterator[str]:
    """The name of an estimator that one class defines: enumeration in reverse order, for variational only."""

    class Reversed(Estimator):
        uses = ("top",)

        def candidates(self, q, mix):
            index = torch.arange(q.scores.size(1) - 1, -1, -1).expand(q.scores.shape)
            return Candidates(index=index, real=q.support.flip(1))

        def expectation(self, l, q, candidates, baseline):
            value = (q.probs.flip(1) * l).sum(1)
            return value, value, None

    ESTIMATORS.register("reversed")(Reversed)
    try:
        yield "reversed"
    finally:
        del ESTIMATORS._entries["reversed"]


def memory_of(vectors):
    """A memory of which no key is needed."""
    return Memory(vectors, torch.zeros(vectors.shape[:2], dtype=torch.bool), vectors)


class World:
    """Random parameters and a ragged batch of positions; every tensor can be differentiated."""

    def __init__(self, seed=0, lengths=LENGTHS, steps=STEPS, spread=1.5):
        generator = torch.Generator().manual_seed(seed)

        def random(*shape):
            return (spread * torch.randn(*shape, generator=generator, dtype=DOUBLE)).requires_grad_()

        self.lengths, self.steps = lengths, steps
        n, s, t = len(lengths), max(lengths), max(steps)
        self.memory = random(n, s, M)
        self.weight, self.bias = random(V, D), random(V)
        self.readout = self.new_readout().double()
        with torch.no_grad():
            for parameter in self.readout.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=DOUBLE))
        # Positions in the order of a flattened T x N batch.
        cells = [(j, i) for j in range(t) for i in range(n) if j < steps[i]]
        self.step = torch.tensor([j for j, _ in cells])
        self.sentence = [i for _, i in cells]
        rows = len(cells)
        self.padding = torch.tensor([[k >= lengths[i] for k in range(s)] for i in self.sentence])
        self.queries, self.raw_prior, self.raw_posterior = random(rows, D), random(rows, s), random(rows, s)
        self.gold = torch.randint(0, V, (rows,), generator=generator)

    @property
    def leaves(self):
        return {
            "queries": self.queries, "prior": self.raw_prior, "posterior": self.raw_posterior,
            "memory": self.memory, "weight": self.weight, "bias": self.bias,
            **dict(self.readout.named_parameters()),
        }  # fmt: skip

    def new_readout(self):
        return AdditiveReadout(D, M)

    def masked(self, scores):
        return scores.masked_fill(self.padding, float("-inf"))

    def positions(self):
        prior = self.masked(self.raw_prior)
        contexts = torch.stack([
            torch.softmax(prior[r, : self.lengths[n]], 0) @ self.memory[n, : self.lengths[n]]
            for r, n in enumerate(self.sentence)
        ])  # fmt: skip
        return Positions(
            self.queries, contexts, prior, self.masked(self.raw_posterior), memory_of(self.memory),
            torch.tensor(self.sentence), self.step, max(self.steps), self.gold,
        )  # fmt: skip

    def emitter(self, chunk_logits=2 * V):
        return Emitter(self.readout, OutputLayer(self.weight, self.bias), chunk_logits)

    def objective(self, name, estimator=None, options=None, **settings):
        return build_objective(name, estimator, EstimatorSettings(**settings), **dict(options or {}))

    def loss(
        self, name, estimator=None, options=None, kl_weight=1.0, chunk_logits=2 * V, fused=True, **settings
    ):
        objective = self.objective(name, estimator, options, **settings)
        objective.fused = fused
        return objective(self.positions(), self.emitter(chunk_logits), kl_weight)

    def gradients(self, loss):
        found = torch.autograd.grad(loss, list(self.leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(self.leaves.items(), found, strict=True)
        }

    # The oracle: one position and one alignment at a time.

    def log_f(self, r, context):
        """log f at position r for one context vector."""
        readout = self.readout
        state = torch.tanh(
            readout.query.weight @ self.queries[r] + readout.query.bias + readout.context.weight @ context
        )
        logits = self.weight @ state + self.bias
        return logits[self.gold[r]] - logits.logsumexp(0)

    def rows(self):
        """For each position: l of every alignment, log p and log q, as lists of scalars with a graph."""
        for r, n in enumerate(self.sentence):
            length = self.lengths[n]
            l = [self.log_f(r, self.memory[n, i]) for i in range(length)]
            log_p = torch.log_softmax(self.raw_prior[r, :length], 0)
            log_q = torch.log_softmax(self.raw_posterior[r, :length], 0)
            yield l, [log_p[i] for i in range(length)], [log_q[i] for i in range(length)]


def marginal(l, log_p, log_q):
    return sum(p.exp() * x.exp() for x, p in zip(l, log_p, strict=True)).log()


def hard(l, log_p, log_q):
    return sum(p.exp() * x for x, p in zip(l, log_p, strict=True))


def variational(l, log_p, log_q):
    return sum(q.exp() * (x - (q - p)) for x, p, q in zip(l, log_p, log_q, strict=True))


ORACLES = {("marginal", "enum"): marginal, ("hard", "enum"): hard, ("variational", "enum"): variational}
