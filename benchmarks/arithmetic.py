"""The matrix products that a training step cannot do without, as floating-point operations.

A product in the forward pass comes back twice in the backward pass, once for the gradient of each
factor: three in all. Nothing is counted twice that can be computed once: source keys and the
memory's part of emission states are taken once per sentence, and vocabulary rows once per candidate.
"""

from benchmarks.shapes import Shape

LEARNED = 3  # products, forward and backward

# Candidates a position; those of enumeration are all source positions.
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
    """Operations of a step.

    Args:
        system: one of ours.
        shape: sizes of the model and the (padded) batch; `words` is the size of the target vocabulary.
        positions: real target positions; default: all.
        candidates: of all positions together; default: as the system has them, without padding.
    """
    source, target = shape.batch * shape.source, shape.batch * shape.target  # words
    memory, decoder, attention = shape.memory, shape.decoder, shape.attention
    real = target if positions is None else positions
    if candidates is None:
        candidates = real * CANDIDATES.get(system, shape.source)
    learned = _reader(source, shape) + _decoder(target, shape)
    # Prior: keys, queries, their scores, the expected context.
    learned += source * memory * attention + target * decoder * attention
    learned += target * shape.source * (attention + memory)
    if system.startswith("variational"):
        learned += _reader(source, shape) + _reader(target, shape)
        learned += source * memory * memory + target * shape.source * memory
    # Emission: the query's part, and the context's.
    learned += real * decoder * decoder
    learned += (candidates if system in WITH_CONTEXTS else source) * memory * decoder
    if system == "variational gumbel":
        learned += target * shape.source * memory
    learned += candidates * decoder * shape.words
    once = 0.0
    if system in WITH_BASELINE:
        once = real * decoder * (decoder + memory + shape.words)
    return 2 * (LEARNED * learned + once)


def _reader(rows: int, shape: Shape) -> float:
    """A bidirectional LSTM over words, each direction half as wide as the memory."""
    half = shape.memory // 2
    inputs = [shape.embeddings] + [shape.memory] * (shape.layers - 1)
    return sum(2 * rows * 4 * half * (size + half) for size in inputs)


def _decoder(rows: int, shape: Shape) -> float:
    """The decoder's LSTM; its first layer reads words and contexts."""
    inputs = [shape.embeddings + shape.memory] + [shape.decoder] * (shape.layers - 1)
    return sum(rows * 4 * shape.decoder * (size + shape.decoder) for size in inputs)
