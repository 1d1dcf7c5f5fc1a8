"""What a stock model's parameters mean, they mean in ours: compared with OpenNMT-py's own decoder."""

import logging
import re

import pytest
import torch
from onmt.models.stacked_rnn import StackedGRU, StackedLSTM

from onmt_varattn.latent import Categorical, SoftContext
from tests import models
from tests.unit.test_decoder import run
from tests.unit.test_recurrence import assert_same

SIZE, WORD = 8, 5
SIZES = f"-layers 2 -rnn_size {SIZE} -word_vec_size {WORD} "
KINDS = [
    "-global_attention mlp -encoder_type brnn",
    "-global_attention general -encoder_type rnn",
    "-global_attention dot -encoder_type brnn -rnn_type GRU",
    "-global_attention mlp -encoder_type rnn -rnn_type GRU",
]


def build(flags, checkpoint=None):
    opt = models.options(SIZES + flags)
    import onmt.model_builder

    return onmt.model_builder.build_base_model(opt, models.fields(), False, checkpoint), opt


def taken_over(flags, fed_back=True, attention="soft"):
    """A stock model, and ours with its parameters; without weights on what is fed back, if asked."""
    torch.manual_seed(0)
    stock, opt = build(flags)
    weights = "decoder.rnn.layers.0.weight_ih"
    if not fed_back:
        stock.state_dict()[weights][:, WORD:] = 0
    checkpoint = {
        "model": {name: value for name, value in stock.state_dict().items() if "generator" not in name},
        "generator": stock.generator.state_dict(),
        "opt": opt,
    }
    ours, _ = build(f"{flags} -attention {attention} -decoder_init encoder", checkpoint)
    if not fed_back:
        ours.state_dict()[weights][:, WORD:] = 0
    ours.decoder.mixture = SoftContext()
    return stock.double(), ours.double()


@pytest.mark.parametrize("flags", KINDS)
def test_attention_and_states_are_those_of_stock_for_the_same_query_and_memory(flags):
    stock, ours = taken_over(flags)
    lengths = torch.tensor([5, 3])
    queries, memory = (torch.randn(2, n, SIZE, dtype=torch.float64) for n in (4, 5))
    states, weights = stock.decoder.attn(queries, memory, lengths)
    padding = (torch.arange(5) >= lengths.unsqueeze(1)).unsqueeze(1)
    score = ours.decoder.attention.score
    prior = Categorical(score(queries, score.keys(memory)), padding)
    torch.testing.assert_close(prior.probs, weights.transpose(0, 1), rtol=0, atol=1e-12)
    emitted = models.emit(ours, queries, prior.mean(memory)).transpose(0, 1)
    right = torch.tanh(states) if "mlp" in flags else states  # stock's mlp has none
    torch.testing.assert_close(emitted, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("flags", KINDS)
def test_without_weights_on_what_is_fed_back_the_whole_model_is_stocks(flags):
    """Encoder, embeddings, first state, recurrence and score, over all steps of a ragged batch."""
    stock, ours = taken_over(flags, fed_back=False)
    batch = models.batch()
    source, lengths = batch.src
    outputs, attention = stock(source, batch.tgt, lengths)
    log_probs, prior = run(ours, batch)
    torch.testing.assert_close(prior, attention["std"], rtol=0, atol=1e-12)
    if "mlp" not in flags:
        right = torch.log_softmax(stock.generator[0](outputs), -1)
        torch.testing.assert_close(log_probs, right, rtol=0, atol=1e-12)


def test_weights_on_what_is_fed_back_start_anew():
    stock, ours = taken_over(KINDS[0])
    theirs, found = (model.decoder.rnn.layers[0].weight_ih for model in (stock, ours))
    assert torch.equal(found[:, :WORD], theirs[:, :WORD])
    assert not torch.isclose(found[:, WORD:], theirs[:, WORD:]).all(1).any()
    assert 0.9 / SIZE**0.5 < found[:, WORD:].abs().max() <= 1 / SIZE**0.5


@pytest.mark.parametrize("shared", ["", " -share_decoder_embeddings -word_vec_size 8"])
def test_the_log_names_every_part_once(shared, caplog):
    with caplog.at_level(logging.INFO):
        _, ours = taken_over(KINDS[0] + shared, attention="variational")
    taken, anew = (record.message for record in caplog.records[-2:])
    counts = {
        name: int(size) for line in (taken, anew) for name, size in re.findall(r"([\w' ]+) \((\d+)\)", line)
    }
    assert sum(counts.values()) == sum(parameter.numel() for parameter in ours.parameters())
    assert [name.strip() for name in re.findall(r"([\w' ]+) \(", anew)] == [
        "decoder RNN weights on the context",
        "posterior",
    ]
    assert counts[" posterior"] == sum(parameter.numel() for parameter in ours.posterior.parameters())
    assert counts[" decoder RNN weights on the context"] == 4 * SIZE * SIZE
    assert counts[" attention score"] == 2 * SIZE * SIZE + 2 * SIZE


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", [StackedLSTM, StackedGRU])
def test_values_and_gradients_of_the_rnn_equal_opennmts(kind, layers):
    assert_same(kind, layers)
