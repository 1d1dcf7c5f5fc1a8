"""Small models and batches for tests, built as OpenNMT builds them."""

from argparse import Namespace
from collections import Counter, defaultdict
from types import SimpleNamespace

import torch
from onmt.inputters.inputter import _build_fields_vocab, get_fields

from onmt_varattn.nmt.plugin import register
from tests.conftest import at_once

VOCABULARY = 12  # with <unk>, <blank>, <s>, </s>
PAD = 1


def fields(words: int | None = None):
    """Fields whose vocabularies have `words` entries a side."""
    words = words or VOCABULARY
    counters = defaultdict(Counter)
    for side, specials in (("src", 2), ("tgt", 4)):
        counters[side].update({f"w{i:03}": words - i for i in range(words - specials)})
    return _build_fields_vocab(get_fields("text", None, None), counters, "text", False, 1, words, 0, words, 0)


def options(flags: str = "") -> Namespace:
    """Options of onmt_train, as resolved before a model is built."""
    register()
    import onmt.opts
    from onmt.utils.parse import ArgumentParser

    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    words = "-data none -src_vocab none -dropout 0 -param_init 1 -optim adam -learning_rate 0.01 " + flags
    words = at_once(words)
    opt = parser.parse_args(words.split())
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    return opt


SMALL = "-attention soft -encoder_type brnn -layers 1 -word_vec_size 5 -enc_rnn_size 6 -dec_rnn_size 7 -attention_size 4 "


def model(flags: str = "", seed: int = 0, dtype: torch.dtype = torch.float64):
    """A model with -attention (and its options), in float64 and without dropout."""
    opt = options(SMALL + flags)
    import onmt.model_builder

    torch.manual_seed(seed)
    built = onmt.model_builder.build_base_model(opt, fields(), gpu=False)
    return built.to(dtype), opt


def batch(lengths=((5, 4), (3, 6), (2, 2)), seed: int = 1, pad_source: int = 0, pad_target: int = 0):
    """A batch of random sentences with the given (source, target) lengths, longest source first.

    Returns OpenNMT's batch: src (S x N x 1, lengths), tgt with <s> and </s> ((T + 2) x N x 1).
    """
    generator = torch.Generator().manual_seed(seed)
    source = torch.full((max(s for s, _ in lengths) + pad_source, len(lengths), 1), PAD)
    target = torch.full((max(t for _, t in lengths) + 2 + pad_target, len(lengths), 1), PAD)
    for n, (s, t) in enumerate(lengths):
        source[:s, n, 0] = torch.randint(4, VOCABULARY, (s,), generator=generator)
        target[: t + 2, n, 0] = torch.tensor([2, *torch.randint(4, VOCABULARY, (t,), generator=generator), 3])
    lengths_tensor = torch.tensor([s for s, _ in lengths])
    return SimpleNamespace(src=(source, lengths_tensor), tgt=target, batch_size=len(lengths))


def emit(built, queries, contexts):
    """Emission states of queries and contexts."""
    readout = built.decoder.attention.readout
    return readout(readout.project_query(queries), readout.project_context(contexts))


def loss_compute(built, opt, train: bool = True):
    """The loss computer OpenNMT would use."""
    import onmt.utils.loss

    return onmt.utils.loss.build_loss_compute(built, fields()["tgt"].base_field, opt, train)


def loss_of(built, opt, some_batch, train: bool = True):
    """Loss (summed) and statistics of a batch."""
    source, lengths = some_batch.src
    output, attns = built(source, some_batch.tgt, lengths)
    return loss_compute(built, opt, train)(some_batch, output, attns)


def translator(built, eos_norm: float = 0.0, **settings):
    """The translator OpenNMT would use, for a model that was never saved."""
    import onmt.translate.translator
    from onmt.inputters import str2reader

    from onmt_varattn.nmt.search.beam import EosNormScorer
    from onmt_varattn.nmt.search.translator import Nowhere

    register()
    scorer = EosNormScorer(1.0, 0.0, "wu", "none")
    scorer.eos_norm = eos_norm
    reader = str2reader["text"]()
    return onmt.translate.translator.Translator(
        built.eval(), fields(), reader, reader, global_scorer=scorer, out_file=Nowhere(), report_score=False, **settings
    )  # fmt: skip
