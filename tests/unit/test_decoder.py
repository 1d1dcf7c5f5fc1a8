"""The decoder against a plain loop over sentences and words, in float64."""

import itertools
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from onmt.utils.misc import tile

from onmt_varattn.latent import Exact, KMax, Samples
from onmt_varattn.nmt.model.decoder import with_null
from tests import models

FLAGS = [
    "",
    "-rnn_type GRU",
    "-layers 2",
    "-layers 3 -rnn_type GRU -global_attention general",
    "-global_attention scaled_dot",
    "-global_attention dot -enc_rnn_size 8 -dec_rnn_size 8",
    "-decoder_init encoder -layers 2",
    "-decoder_init encoder -rnn_type GRU -enc_rnn_size 8 -dec_rnn_size 8",
    "-encoder_type rnn",
    "-input_feed 0",
    "-input_feed 0 -rnn_type GRU -layers 2 -decoder_init encoder",
    "-null_alignment",
    "-null_alignment -global_attention general -input_feed 0",
]


def gates_lstm(cell, x, h, c):
    i, f, g, o = (cell.weight_ih @ x + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gates_gru(cell, x, h, c):
    xr, xz, xn = (cell.weight_ih @ x + cell.bias_ih).chunk(3)
    hr, hz, hn = (cell.weight_hh @ h + cell.bias_hh).chunk(3)
    z = torch.sigmoid(xz + hz)
    return (1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * h, c


def mixture_soft(model, query, p, memory):
    return torch.log_softmax(logits(model, query, p @ memory), 0)


def mixture_exact(model, query, p, memory, keep=None):
    """log sum_i p_i softmax(W tanh(U [q; x_i])), over the K largest p_i if told so."""
    kept = p.argsort(descending=True)[:keep]
    total = p[kept].sum()
    return sum(p[i] / total * torch.softmax(logits(model, query, memory[i]), 0) for i in kept).log()


def logits(model, query, context):
    readout, output = model.decoder.attention.readout, model.generator.output_layer
    state = torch.tanh(readout.query.weight @ query + readout.query.bias + readout.context.weight @ context)
    return output.weight @ state + output.bias


def cells_of(rnn):
    """The weights of each layer, be it a stack of cells or one of torch's RNNs."""
    if hasattr(rnn, "layers"):
        return list(rnn.layers)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [
        SimpleNamespace(**{name: getattr(rnn, f"{name}_l{layer}") for name in names})
        for layer in range(rnn.num_layers)
    ]


def plain_decode(model, opt, source, words, mixture=mixture_soft):
    """One sentence alone: log probabilities and attention of each position, word by word."""
    decoder = model.decoder
    final, memory, _ = model.encoder(source.view(-1, 1, 1), torch.tensor([len(source)]))
    memory = memory[:, 0]  # S x M
    if opt.null_alignment:
        memory = torch.stack([*memory, decoder.attention.null])
    layers = len(cells_of(decoder.rnn))
    h = [torch.zeros(decoder.size).double() for _ in range(layers)]
    c = [torch.zeros(decoder.size).double() for _ in range(layers)]
    if opt.decoder_init == "encoder":
        finals = final if isinstance(final, tuple) else (final, final)
        for layer in range(layers):
            directions = finals[0].size(0) // layers
            join = [torch.cat(list(f[layer * directions : (layer + 1) * directions, 0])) for f in finals]
            h[layer], c[layer] = (decoder.bridge(state) for state in join)
    step = gates_lstm if opt.rnn_type == "LSTM" else gates_gru
    context = torch.zeros(decoder.memory_size).double()
    log_probs, attention = [], []
    for word in words:
        x = decoder.embeddings.word_lut.weight[word]
        if opt.input_feed:
            x = torch.cat([x, context])
        for layer, cell in enumerate(cells_of(decoder.rnn)):
            h[layer], c[layer] = step(cell, x, h[layer], c[layer])
            x = h[layer]
        keys = decoder.attention.score.keys(memory.unsqueeze(0))
        scores = decoder.attention.score(x.view(1, 1, -1), keys)[0, 0]
        p = torch.softmax(scores, 0)
        context = sum(p[i] * memory[i] for i in range(len(memory)))
        log_probs.append(mixture(model, x, p, memory))
        attention.append(p)
    return torch.stack(log_probs), torch.stack(attention)


def run(model, batch):
    source, lengths = batch.src
    final, memory, lengths = model.encoder(source, lengths)
    model.decoder.init_state(source, memory, final)
    out, attention = model.decoder(batch.tgt[:-1], memory, memory_lengths=lengths)
    return model.generator(out), attention["std"]


@pytest.mark.parametrize("flags", FLAGS)
def test_decoder_equals_a_plain_loop(flags):
    model, opt = models.model(flags)
    batch = models.batch()
    log_probs, attention = run(model, batch)
    for n, (s, t) in enumerate(((5, 4), (3, 6), (2, 2))):
        right, p = plain_decode(model, opt, batch.src[0][:s, n, 0], batch.tgt[: t + 1, n, 0])
        torch.testing.assert_close(log_probs[: t + 1, n], right, rtol=0, atol=1e-12)
        found = attention[: t + 1, n, :s]
        torch.testing.assert_close(with_null(found) if opt.null_alignment else found, p, rtol=0, atol=1e-12)
        assert attention.size(2) == 5, "OpenNMT sees the words of the source only"
        assert (attention[: t + 1, n, s:] == 0).all()


MIXTURES = {
    "exact": (Exact(), mixture_exact),
    "kmax 1": (KMax(1), partial(mixture_exact, keep=1)),
    "kmax 2": (KMax(2), partial(mixture_exact, keep=2)),
    "kmax 99": (KMax(99), mixture_exact),
}


@pytest.mark.parametrize("flags", ["", "-null_alignment"])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_over_alignments_equal_a_plain_loop(name, flags, monkeypatch):
    monkeypatch.setattr("onmt_varattn.nmt.model.generator.CHUNK_LOGITS", 3 * models.VOCABULARY * 5)
    model, opt = models.model(flags)
    model.decoder.mixture, mixture = MIXTURES[name]
    batch = models.batch()
    log_probs, _ = run(model, batch)
    for n, (s, t) in enumerate(((5, 4), (3, 6), (2, 2))):
        right, _ = plain_decode(model, opt, batch.src[0][:s, n, 0], batch.tgt[: t + 1, n, 0], mixture)
        torch.testing.assert_close(log_probs[: t + 1, n], right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("search", ["beam", "samples", "greedy"])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_follow_the_search(name, search):
    model, _ = models.model()
    model.decoder.mixture = MIXTURES[name][0]
    batch = models.batch()
    moves = SEARCHES[search]
    for found, right in zip(follow(model, batch, moves), follow_one_by_one(model, batch, moves), strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-12)


def test_k_max_computes_k_states_whatever_the_source_length():
    model, _ = models.model()
    model.decoder.mixture = KMax(2)
    for length in (4, 9):
        batch = models.batch(lengths=((length, 3),))
        source, lengths = batch.src
        final, memory, lengths = model.encoder(source, lengths)
        model.decoder.init_state(source, memory, final)
        out, _ = model.decoder(batch.tgt[:-1], memory, memory_lengths=lengths)
        assert out.states.shape[2] == 2


def test_samples_average_to_the_mixture_of_draws():
    """Dirichlet draws, each equally weighted; many of them agree with as many others."""
    model, _ = models.model()
    values = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model.decoder.mixture = Samples(4000)
        values.append(run(model, models.batch(lengths=((4, 2),)))[0].exp())
    assert (values[0] - values[1]).abs().max() < 0.02
    model.decoder.mixture = Samples(1)
    assert (run(model, models.batch(lengths=((4, 2),)))[0].exp() - values[0]).abs().max() > 0.001


@pytest.mark.parametrize("flags", FLAGS)
def test_word_by_word_equals_all_at_once(flags):
    model, _ = models.model(flags)
    batch = models.batch()
    right, right_attention = run(model, batch)
    source, lengths = batch.src
    final, memory, lengths = model.encoder(source, lengths)
    model.decoder.init_state(source, memory, final)
    for step, word in enumerate(batch.tgt[:-1]):
        out, attention = model.decoder(word.unsqueeze(0), memory, memory_lengths=lengths, step=step)
        torch.testing.assert_close(model.generator(out.squeeze(0)), right[step], rtol=0, atol=1e-12)
        torch.testing.assert_close(attention["std"][0], right_attention[step], rtol=0, atol=1e-12)


def follow(model, batch, moves):
    """Decode a few words while hypotheses are repeated, reordered and dropped as in a search.

    `moves` are the functions given to `map_state`; the decoder must do what it does when its
    memory is moved along with everything else.
    """
    source, lengths = batch.src
    with torch.no_grad():
        final, memory, lengths = model.encoder(source, lengths)
        model.decoder.init_state(source, memory, final)
        outs = []
        for step, move in enumerate(moves):
            model.decoder.map_state(move)
            memory, lengths = move(memory, 1), move(lengths, 0)
            word = torch.full((1, memory.size(1), 1), 4 + step)
            out, _ = model.decoder(word, memory, memory_lengths=lengths, step=step)
            outs.append(model.generator(out.squeeze(0)))
        return outs


def follow_one_by_one(model, batch, moves):
    """The same for each hypothesis alone: which sentence it comes from is all that matters."""
    rows = torch.arange(batch.src[0].size(1)).unsqueeze(0)
    outs = []
    for steps in range(1, len(moves) + 1):
        rows = moves[steps - 1](rows, 1)
        expected = []
        for n in rows[0].tolist():
            length = int(batch.src[1][n])
            alone, lengths = batch.src[0][:length, n : n + 1], batch.src[1][n : n + 1]
            with torch.no_grad():
                final, memory, _ = model.encoder(alone, lengths)
                model.decoder.init_state(alone, memory, final)
                words = torch.arange(4, 4 + steps).view(-1, 1, 1)
                out, _ = model.decoder(words, memory, memory_lengths=lengths)
                expected.append(model.generator(out)[-1, 0])
        outs.append(torch.stack(expected))
    return outs


def select(*indices):
    return lambda state, dim: state.index_select(dim, torch.tensor(indices))


SEARCHES = {
    "beam": [
        lambda state, dim: tile(state, 2, dim=dim),
        select(1, 0, 2, 2, 5, 4),
        select(0, 1, 4, 4),  # the second sentence is done
        select(3, 2),  # and the first
    ],
    "samples": [
        lambda state, dim: tile(state, 2, dim=dim),
        select(0, 2, 3, 5),  # hypotheses end one by one
        select(0, 3),
    ],
    "greedy": [select(0, 1, 2), select(0, 2), select(1)],
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    "flags",
    ["", "-rnn_type GRU -global_attention general -decoder_init encoder", "-input_feed 0", "-null_alignment"],
)
def test_memory_follows_the_search(search, flags):
    model, _ = models.model(flags)
    batch = models.batch()
    moves = SEARCHES[search]
    for found, right in zip(follow(model, batch, moves), follow_one_by_one(model, batch, moves), strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-12)


def test_keys_are_projected_once_a_sentence_and_never_in_the_loop():
    model, _ = models.model()
    calls = []
    model.decoder.attention.score.memory.register_forward_hook(lambda *_: calls.append(1))
    batch = models.batch()
    run(model, batch)
    assert len(calls) == 1
    follow(model, batch, SEARCHES["beam"])
    assert len(calls) == 2


def test_a_mixture_of_copies_is_the_state_itself_and_weights_count():
    model, _ = models.model()
    from onmt_varattn.nmt.model.decoder import CandidateStates

    one = torch.randn(2, 3, 1, 7, dtype=torch.float64)
    other = torch.randn(2, 3, 1, 7, dtype=torch.float64)
    alone = model.generator(CandidateStates(one, torch.zeros(2, 3, 1)))
    weights = torch.tensor([0.3, 0.7], dtype=torch.float64).log().expand(2, 3, 2)
    copies = model.generator(CandidateStates(torch.cat([one, one], 2), weights))
    torch.testing.assert_close(copies, alone, rtol=0, atol=1e-12)
    mixed = model.generator(CandidateStates(torch.cat([one, other], 2), weights))
    right = 0.3 * alone.exp() + 0.7 * model.generator(CandidateStates(other, torch.zeros(2, 3, 1))).exp()
    torch.testing.assert_close(mixed.exp(), right, rtol=0, atol=1e-12)


def test_update_dropout_reaches_every_layer():
    model, _ = models.model("-layers 2")
    model.update_dropout(0.7, 0.0)
    rates = [m.p for m in model.decoder.modules() if isinstance(m, torch.nn.Dropout)]
    assert rates
    assert set(rates) == {0.7}


def test_every_pair_of_flags_gives_a_different_function():
    outs = []
    for flags in FLAGS[:5] + FLAGS[6:7]:
        model, _ = models.model(flags)
        outs.append(run(model, models.batch())[0])
    for a, b in itertools.combinations(outs, 2):
        assert not torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    "flags",
    [
        "-attention soft",
        "-attention variational -null_alignment",
        "-attention variational -share_decoder_embeddings -word_vec_size 7",
    ],
)
def test_parameter_counts_add_up(flags):
    """Each part's own, by hand; a shared matrix counts once, and the parts give the total."""
    model, _ = models.model(flags)
    lines = []
    counts = model.count_parameters(log=lines.append)
    numbers = {
        name: sum(value.numel() for value in part.parameters()) for name, part in model.named_children()
    }
    shared = model.generator.output_layer.weight is model.decoder.embeddings.word_lut.weight
    assert shared == ("share_decoder" in flags)
    expected = {"encoder": numbers["encoder"], "decoder": numbers["decoder"]}
    if "variational" in flags:
        expected["posterior"] = numbers["posterior"]
    expected["output layer"] = numbers["generator"] - shared * model.generator.output_layer.weight.numel()
    assert counts == expected
    total = sum({id(value): value.numel() for value in model.parameters()}.values())
    assert lines == [f"{part}: {count}" for part, count in expected.items()] + [
        f"* number of parameters: {total}"
    ]
    assert sum(counts.values()) == total
