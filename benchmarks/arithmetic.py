"""The matrix products that a training step requires, in floating-point operations.

Each product of the forward pass needs two more in the backward pass, one for the gradient of each factor.
Products that can be shared are counted once: source keys and projections of the memory once per sentence, and
logits once per candidate.
"""

from benchmarks.shapes import Shape

LEARNED = 3  # products: one forward, two backward

# Candidates per position; by default all source positions.
CANDIDATES = {
    "soft": 1.0,
    "variational sample": 1.0,
    "variational gumbel": 1.0,
    "variational rws, 5 samples": 5.0,
    "variational sum_and_sample, k=3": 4.0,
}
WITH_BASELINE = ("variational sample", "variational sum_and_sample, k=3")
WITH_CONTEXTS = ("soft", "variational gumbel")  # candidates are mixtures of source positions


def needed(system: str, shape: Shape, positions: int | None = None, candidates: float | None = None) -> float:
    """Operations per step.

    Args:
        system: a system other than stock.
        shape: sizes of the model and the padded batch.
        positions: number of target positions without padding. Default: all.
        candidates: number of candidates of all positions together. Default: that of the system.
    """
    source, target = shape.batch * shape.source, shape.batch * shape.target  # words
    memory, decoder, attention = shape.memory, shape.decoder, shape.attention
    real = target if positions is None else positions
    if candidates is None:
        candidates = real * CANDIDATES.get(system, shape.source)
    learned = _encoder(source, shape) + _decoder(target, shape)
    # Prior: keys, queries, their scores, the expected context.
    learned += source * memory * attention + target * decoder * attention
    learned += target * shape.source * (attention + memory)
    if system.startswith("variational"):
        learned += _encoder(source, shape) + _encoder(target, shape)
        learned += source * memory * memory + target * shape.source * memory
    # Emission: projections of queries and contexts.
    learned += real * decoder * decoder
    learned += (candidates if system in WITH_CONTEXTS else source) * memory * decoder
    if system == "variational gumbel":
        learned += target * shape.source * memory
    learned += candidates * decoder * shape.words
    once = 0.0
    if system in WITH_BASELINE:
        once = real * decoder * (decoder + memory + shape.words)
    return 2 * (LEARNED * learned + once)


def _encoder(rows: int, shape: Shape) -> float:
    """A bidirectional LSTM over words; each direction has half the memory size."""
    half = shape.memory // 2
    inputs = [shape.embeddings] + [shape.memory] * (shape.layers - 1)
    return sum(2 * rows * 4 * half * (size + half) for size in inputs)


def _decoder(rows: int, shape: Shape) -> float:
    """The decoder's LSTM; its first layer reads words and contexts."""
    inputs = [shape.embeddings + shape.memory] + [shape.decoder] * (shape.layers - 1)
    return sum(rows * 4 * shape.decoder * (size + shape.decoder) for size in inputs)
