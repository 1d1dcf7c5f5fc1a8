"""Perplexities of the log: log probabilities of the model itself, divided by the number of tokens."""

import math

import pytest
import torch

from onmt_varattn.latent import Samples
from onmt_varattn.nmt.search.beam import EosNormScorer
from onmt_varattn.nmt.search.tally import Tally
from tests import models

EOS = 3
SOURCES = ["w000 w001 w004 w002", "w005", "w003 w003 w001"]


def built(ours):
    """A model that has preferences, ours or OpenNMT's, and sometimes ends a sentence."""
    if ours:
        model, _ = models.model("-attention marginal -seed 3", dtype=torch.float32)
    else:
        import onmt.model_builder

        opt = models.options("-layers 1 -rnn_size 8 -word_vec_size 8 -global_attention mlp")
        torch.manual_seed(2)
        model = onmt.model_builder.build_base_model(opt, models.fields(), gpu=False)
    model.generator[0].bias.data[EOS] = 1.5
    return model.eval()


def translator_of(model, length_penalty="none", coverage="none", eos_norm=0.0, **settings):
    translator = models.translator(model, **{"beam_size": 3, "max_length": 6, "seed": 4, **settings})
    scorer = EosNormScorer(0.8, 0.5, length_penalty, coverage)
    scorer.eos_norm = eos_norm
    translator.global_scorer, translator.report_score = scorer, True
    translator._log = lambda line: None
    return translator


@torch.no_grad()
def log_prob_of(model, source, words):
    """log p(words | source), word by word through the model's own parts; no translator, no search."""
    fields = models.fields()
    numbers = [fields["src"].base_field.vocab.stoi[word] for word in source.split()]
    src, lengths = torch.tensor(numbers).view(-1, 1, 1), torch.tensor([len(numbers)])
    final, memory, lengths = model.encoder(src, lengths)
    model.decoder.init_state(src, memory, final)
    total, before = 0.0, 2  # <s>
    for word in words:
        states, _ = model.decoder(torch.tensor([[[before]]]), memory, memory_lengths=lengths, step=0)
        total += model.generator(states.squeeze(0))[0, word].item()
        before = word
    return total


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "stock"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"length_penalty": "wu"},
        {"length_penalty": "avg"},
        {"length_penalty": "wu", "eos_norm": 3.0},
        {"length_penalty": "avg", "eos_norm": 3.0, "n_best": 2},
        {"length_penalty": "wu", "coverage": "summary"},
        {"coverage": "summary", "stepwise_penalty": True, "eos_norm": 1.0},
        {"length_penalty": "wu", "eos_norm": 3.0, "max_length": 2},
        {"beam_size": 1, "random_sampling_topk": -1},
        {"beam_size": 1, "random_sampling_topk": 5, "random_sampling_temp": 0.6, "length_penalty": "avg"},
        {"beam_size": 1, "random_sampling_topp": 0.8, "random_sampling_temp": 3.0, "eos_norm": 3.0},
        {"beam_size": 1, "random_sampling_topk": 1, "random_sampling_temp": 2.0},
        {"beam_size": 1, "random_sampling_topk": 1, "random_sampling_temp": 0.0},
    ],
    ids=str,
)
def test_translations_have_the_models_log_probability(ours, settings, monkeypatch):
    """Whatever a search makes of it for its score."""
    model = built(ours)
    translator = translator_of(model, **settings)
    found = {}
    search = type(translator).translate_batch

    def translate_batch(self, batch, *args):
        result = search(self, batch, *args)
        for i, tokens in zip(batch.indices.tolist(), result["predictions"], strict=True):
            found[i] = tokens[0].tolist()
        return result

    monkeypatch.setattr(type(translator), "translate_batch", translate_batch)
    # What is printed keeps its order, so that indices are those of the lines.
    monkeypatch.setattr(translator, "verbose", True)
    monkeypatch.setattr("os.write", lambda *_: 0)
    scores, _ = translator.translate(SOURCES, batch_size=2)
    tally = translator.tallies["PRED"]
    assert tally.tokens == sum(map(len, found.values()))
    right = sum(log_prob_of(model, line, found[i]) for i, line in enumerate(SOURCES))
    assert len(found) == len(SOURCES)
    assert tally.log_prob == pytest.approx(right, rel=1e-5)
    assert tally.score == pytest.approx(sum(float(line[0]) for line in scores), rel=1e-6)
    assert tally.ppl == pytest.approx(math.exp(-right / tally.tokens), rel=1e-5)


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "stock"])
def test_references_have_the_models_log_probability(ours):
    """Blank ones too, whose only token is the end; in batches of any size, over several calls."""
    model = built(ours)
    references = ["w001 w002", "", "w004 w000 w007 w001 w001"]
    vocab = models.fields()["tgt"].base_field.vocab
    right = sum(
        log_prob_of(model, source, [*(vocab.stoi[word] for word in target.split()), EOS])
        for source, target in zip(SOURCES, references, strict=True)
    )
    whole, single = (translator_of(model, length_penalty="wu", eos_norm=3.0) for _ in range(2))
    whole.translate(SOURCES, tgt=references, batch_size=3)
    for source, target in zip(SOURCES, references, strict=True):
        single.translate([source], tgt=[target], batch_size=1)
    for translator in (whole, single):
        tally = translator.tallies["GOLD"]
        assert (tally.tokens, tally.sentences) == (2 + 0 + 5 + 3, 3)
        assert tally.log_prob == pytest.approx(right, rel=1e-5)


def test_the_line():
    tally = Tally()
    assert tally.line("PRED") == "PRED No translations"
    tally.add(-1.0, -2 * math.log(4), 2)
    tally.add(-2.0, -3 * math.log(4), 3)
    assert tally.line("PRED") == "PRED SCORE: -1.5000, PRED PPL: 4.0000 NB SENTENCES: 2 NB TOKENS: 5"
    tally.add(0.0, -1e6, 1)
    assert "PRED PPL: inf " in tally.line("PRED")


def test_a_coverage_penalty_changes_no_draw():
    """Relaxed attention draws alignments; reading translations again must not change the next ones."""
    model, _ = models.model("-attention relaxed", dtype=torch.float32)
    model.decoder.mixture = Samples(3)
    found = []
    for reports in (True, False):
        translator = translator_of(model.eval(), coverage="summary")
        translator.report_score = reports
        torch.manual_seed(1)
        found.append(translator.translate(SOURCES, batch_size=1))
    assert found[0] == found[1]
