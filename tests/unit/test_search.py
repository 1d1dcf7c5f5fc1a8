"""Beam search with a price on ending early, against the formula for each finished hypothesis."""

import pytest
import torch
from onmt.translate import BeamSearch, GNMTGlobalScorer

from onmt_varattn.nmt.search.beam import EosNormBeamSearch, EosNormScorer
from tests import models

V, BOS, EOS, PAD, UNK = 9, 2, 3, 1, 0
LENGTHS = torch.tensor([7, 4, 1])
BEAM, N = 4, 3


def table(steps):
    """log p(word | step, sentence): words do not depend on each other, so scores are easy to add up."""
    logits = torch.randn(N, steps, V, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logits[..., [PAD, BOS, UNK]] = -1e4
    logits[2, :, EOS] += 4  # the last sentence wants to end at once, while the others go on
    return torch.log_softmax(logits, -1)


def search(cls, scorer, max_length=8):
    beam = cls(
        BEAM, N, PAD, BOS, EOS, UNK, n_best=BEAM, global_scorer=scorer, min_length=0, max_length=max_length,
        return_attention=False, block_ngram_repeat=0, exclusion_tokens=set(), stepwise_penalty=False,
        ratio=0.0, ban_unk_token=False,
    )  # fmt: skip
    beam.initialize(torch.zeros(int(LENGTHS.max()), N, 2), LENGTHS)
    log_probs = table(max_length)
    alive = []
    for step in range(max_length):
        sentences = beam.batch_offset.repeat_interleave(BEAM)
        alive.append(len(beam.batch_offset))
        beam.advance(log_probs[sentences, step].float().clone(), None)
        if beam.is_finished.any():
            beam.update_finished()
            if beam.done:
                break
    return beam, log_probs, alive


def scorer(eos_norm, alpha=1.0, length_penalty="wu"):
    built = EosNormScorer(alpha, 0.0, length_penalty, "none")
    built.eos_norm = eos_norm
    return built


@pytest.mark.parametrize("eos_norm", [0.5, 3.0])
@pytest.mark.parametrize(("alpha", "penalty"), [(0.0, "none"), (1.0, "wu")])
def test_every_finished_hypothesis_has_the_score_of_the_formula(eos_norm, alpha, penalty):
    beam, log_probs, alive = search(EosNormBeamSearch, scorer(eos_norm, alpha, penalty))
    assert len(set(alive)) > 1, "no sentence ended before the others: the test does not see reordering"
    checked = 0
    for n in range(N):
        for score, words in zip(beam.scores[n], beam.predictions[n], strict=True):
            ended = words[-1] == EOS
            total = sum(log_probs[n, step, word].item() for step, word in enumerate(words))
            if ended:
                so_far = len(words)  # the words before the end, and the begin-of-sentence mark
                total -= eos_norm * LENGTHS[n].item() / (so_far + 1)
                checked += 1
            divisor = ((5 + len(words) + 1) / 6) ** alpha
            assert score.item() == pytest.approx(total / divisor, abs=1e-4)
    assert checked > N


def test_without_eos_norm_it_is_opennmts_search():
    ours, _, _ = search(EosNormBeamSearch, scorer(0.0))
    stock, _, _ = search(BeamSearch, GNMTGlobalScorer(1.0, 0.0, "wu", "none"))
    for n in range(N):
        assert [w.tolist() for w in ours.predictions[n]] == [w.tolist() for w in stock.predictions[n]]
        assert ours.scores[n] == stock.scores[n]


def test_it_makes_translations_longer():
    def mean_length(eos_norm):
        beam, _, _ = search(EosNormBeamSearch, scorer(eos_norm))
        return sum(len(beam.predictions[n][0]) for n in range(N)) / N

    assert mean_length(3.0) > mean_length(0.0)


@pytest.mark.parametrize("way", [{"beam_size": 3, "n_best": 3}, {"beam_size": 1, "random_sampling_topk": -1}])
@pytest.mark.parametrize("ours", [True, False])
def test_our_models_write_no_padding_and_no_begin_of_a_sentence(ours, way):
    """Whatever their parameters; stock models are as they are."""
    if ours:
        model, _ = models.model(dtype=torch.float32)
    else:
        import onmt.model_builder

        opt = models.options("-layers 1 -rnn_size 8 -word_vec_size 8")
        model = onmt.model_builder.build_base_model(opt, models.fields(), gpu=False)
    model.generator[0].bias.data[[PAD, BOS]] = 50.0
    found = models.translator(model, max_length=4, **way).hypotheses(["w000 w001", "w002"], batch_size=2)
    words = {word for hypotheses in found for hypothesis in hypotheses for word in hypothesis.tokens}
    assert words
    assert words.isdisjoint({"<blank>", "<s>"}) == ours


def test_a_reference_is_scored_with_all_words_there_are(monkeypatch):
    model, _ = models.model(dtype=torch.float32)
    model.generator[0].bias.data[[PAD, BOS]] = 50.0
    translator = models.translator(model, max_length=4, beam_size=1)
    scores = []
    score_target = translator._score_target
    monkeypatch.setattr(
        translator, "_score_target", lambda *args: scores.append(score_target(*args)) or scores[-1]
    )
    translator.translate(["w000 w001"], tgt=["<s>"], batch_size=1)
    assert -100 < scores[0].item() < -40, "the end of the sentence is as improbable as that, and <s> is not"
