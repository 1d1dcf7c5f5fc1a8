"""Perplexity of translations and references, per token.

OpenNMT-py reports the exponential of the mean score per *sentence*, which may also be divided by a length
penalty. Here log probabilities are summed and divided by the number of tokens, including </s>. The score of
the search

    score = (log p(y | x) / temperature - eos_norm penalty) / length penalty - coverage penalty

is inverted; with a coverage penalty, which cannot be inverted, log p is computed again.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from onmt.translate.translator import Inference
from torch import Tensor


@dataclass
class Tally:
    """Sums for one line of the log."""

    score: float = 0.0
    log_prob: float = 0.0
    tokens: int = 0
    sentences: int = 0

    def add(self, score: float, log_prob: float, tokens: int) -> None:
        """Add a sentence."""
        self.score += score
        self.log_prob += log_prob
        self.tokens += tokens
        self.sentences += 1

    @property
    def ppl(self) -> float:
        """Perplexity per token; infinite instead of an overflow."""
        nats = -self.log_prob / self.tokens
        return math.exp(nats) if nats < 700 else math.inf

    def line(self, name: str) -> str:
        """OpenNMT-py's line, with the number of tokens."""
        if not self.sentences:
            return f"{name} No translations"
        return (
            f"{name} SCORE: {self.score / self.sentences:.4f}, {name} PPL: {self.ppl:.4f} "
            f"NB SENTENCES: {self.sentences} NB TOKENS: {self.tokens}"
        )


class Tallying(Inference):
    """Mix-in of the translator that computes perplexities.

    Attributes:
        tallies: sums over the best translations (PRED) and the references (GOLD) of all calls, so that with
            several shards the last lines of the log are about the whole text.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tallies = {"PRED": Tally(), "GOLD": Tally()}

    def translate_batch(self, batch: Any, src_vocabs: Any, attn_debug: bool) -> dict[str, Any]:
        """Translate a batch, and add it to the tallies if scores are reported."""
        result = super().translate_batch(batch, src_vocabs, attn_debug)
        if self.report_score:
            best = [tokens[0] for tokens in result["predictions"]]
            scores = [float(found[0]) for found in result["scores"]]
            log_probs = self._log_probs(batch, src_vocabs, scores, best)
            for score, log_prob, tokens in zip(scores, log_probs, best, strict=True):
                self.tallies["PRED"].add(score, log_prob, len(tokens))
            if "tgt" in batch.__dict__:
                counts = batch.tgt[1:, :, 0].ne(self._tgt_pad_idx).sum(0).tolist()  # <s> is not predicted
                for score, tokens in zip(map(float, result["gold_score"]), counts, strict=True):
                    self.tallies["GOLD"].add(score, score, tokens)
        return result

    def _report_score(self, name: str, score_total: Any, nb_sentences: int) -> str:
        """The line of the log, for all translations so far."""
        return self.tallies[name].line(name)

    def _log_probs(
        self, batch: Any, src_vocabs: Any, scores: list[float], predictions: list[Tensor]
    ) -> list[float]:
        """Log probabilities of translations, from the scores of the search."""
        if self.global_scorer.has_cov_pen:
            return self._rescored(batch, src_vocabs, predictions)
        samples = self.sample_from_topk != 0 or self.sample_from_topp != 0
        temperature = self.random_sampling_temp if samples else 1.0
        eos_norm = 0.0 if samples else getattr(self.global_scorer, "eos_norm", 0.0)
        log_probs = []
        for score, tokens, source in zip(scores, predictions, batch.src[1].tolist(), strict=True):
            length = len(tokens) + 1  # with <s>
            total = score * self.global_scorer.length_penalty(length, alpha=self.global_scorer.alpha)
            if eos_norm and tokens[-1] == self._tgt_eos_idx:
                total += eos_norm * source / length
            log_probs.append(total * (temperature or 1.0))  # 0: argmax, without scaling
        return log_probs

    @torch.no_grad()
    def _rescored(self, batch: Any, src_vocabs: Any, predictions: list[Tensor]) -> list[float]:
        """Log probabilities of translations, computed again; the random state does not change."""
        framed = self._align_pad_prediction(
            [[tokens] for tokens in predictions], bos=self._tgt_bos_idx, pad=self._tgt_pad_idx
        )  # N x 1 x T
        given = batch.__dict__.get("tgt")
        batch.tgt = framed.squeeze(1).t().unsqueeze(2)  # T x N x 1
        try:
            with torch.random.fork_rng([memory.device] if (memory := batch.tgt).is_cuda else []):
                src, enc_states, memory_bank, lengths = self._run_encoder(batch)
                self.model.decoder.init_state(src, memory_bank, enc_states)
                src_map = batch.src_map if self.copy_attn else None
                return self._score_target(batch, memory_bank, lengths, src_vocabs, src_map).tolist()
        finally:
            del batch.tgt
            if given is not None:
                batch.tgt = given
