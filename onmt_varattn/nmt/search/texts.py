"""Translation of files and streams of raw text."""

import ast
import contextlib
import io
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onmt.utils.parse import ArgumentParser

from onmt_varattn.errors import FailedError, UserError
from onmt_varattn.nmt.model.reading import Reader
from onmt_varattn.nmt.search.dump import AttentionDump
from onmt_varattn.nmt.search.loading import Loaded
from onmt_varattn.nmt.search.translator import Hypothesis, Translator
from onmt_varattn.nmt.settings import check_translate
from onmt_varattn.nmt.text.fit import SAMPLE, sides_of, warn_of_misfit
from onmt_varattn.nmt.text.scores import score_text
from onmt_varattn.nmt.text.vocabulary import unknown_share
from onmt_varattn.training.memory import keep_freed_memory
from onmt_varattn.utils.cli import start_logging
from onmt_varattn.utils.files import (
    atomic_write,
    check_output,
    write_result,
)
from onmt_varattn.utils.progress import progress
from onmt_varattn.utils.reading import check_parallel, input_lines, read_lines, read_parallel

STANDARD_INPUT = "-"
DEFAULT_OUTPUT = "pred.txt"  # OpenNMT-py's


def translate(opt: Namespace) -> None:
    """Translate a file, or standard input line by line."""
    check_translate(opt)
    keep_freed_memory()
    if opt.src == STANDARD_INPUT:
        translate_stream(opt)
    else:
        translate_file(opt)


def translate_dynamic(opt: Namespace) -> None:
    """Translate a file with OpenNMT-py's transforms."""
    check_translate(opt)
    if not read_lines(opt.src):
        raise UserError(f"{opt.src}: the file is empty")
    check_output("output", opt.output, [])
    import onmt.bin.translate_dynamic

    onmt.bin.translate_dynamic.translate(opt)


def translate_file(opt: Namespace) -> None:
    """Translate a file; with a reference, score the translations."""
    source, reference = read_source(opt)
    features = read_features(opt, len(source))
    inputs = [("src", opt.src), ("tgt", opt.tgt), *(("model", path) for path in opt.models)]
    check_output("output", opt.output, inputs)
    check_output("dump_attention", opt.dump_attention, [*inputs, ("output", opt.output)])
    translator = build(opt)
    warn_of_misfits(opt, translator, {"src": source, "tgt": reference})
    found: list[list[Any]] = []
    with (
        progress_bar(translator, source),
        unless_interrupted(opt.output),
        dump(opt, translator) as dumped,
    ):
        for start in range(0, len(source), opt.shard_size or len(source)):
            shard = slice(start, start + (opt.shard_size or len(source)))
            target = None if reference is None else reference[shard]
            translations = hypotheses(
                translator,
                source[shard],
                src_feats={name: lines[shard] for name, lines in features.items()},
                tgt=target,
                batch_size=opt.batch_size,
                batch_type=opt.batch_type,
                attn_debug=opt.attn_debug,
                align_debug=opt.align_debug,
            )
            dumped.write(source[shard], translations, None if opt.tgt_prefix else target)
            found += [[replace(one, attention=None) for one in line] for line in translations]
    try:
        write_result(opt.output, "".join(line + "\n" for line in output_lines(found, opt.with_score)))
        print(f"{len(source)} sentences translated to {opt.output}")
    finally:
        if reference is not None and not opt.tgt_prefix:  # a prefix is copied, not translated
            scores = score_text([best[0].text for best in found], reference, translator.lowercase)
            print("\n".join(score.line for score in scores.values()))
    if dumped.error is not None:
        raise FailedError(
            f"-dump_attention {opt.dump_attention}: cannot be written: {dumped.error.strerror}; "
            f"the translations are in {opt.output}"
        )


def read_source(opt: Namespace) -> tuple[list[str], list[str] | None]:
    """The lines to translate, and their reference if there is one."""
    if opt.tgt:
        source, reference = zip(*read_parallel(opt.src, opt.tgt), strict=True)
        return list(source), list(reference)
    lines = read_lines(opt.src)
    if not lines:
        raise UserError(f"{opt.src}: the file is empty")
    return lines, None


def translate_stream(opt: Namespace) -> None:
    """Translate standard input line by line, as it arrives."""
    if opt.tgt or opt.src_feats:
        raise UserError(
            f"-src {STANDARD_INPUT} (standard input) does not go with -tgt or -src_feats; use files"
        )
    to_file = opt.output != DEFAULT_OUTPUT
    if to_file:
        check_output("output", opt.output, (("model", path) for path in opt.models))
    translator = build(opt, quiet=True)
    output = io.StringIO() if to_file else sys.stdout
    for line in input_lines(sys.stdin, "standard input"):
        found = hypotheses(translator, [line], batch_size=1)
        output.writelines(out + "\n" for out in output_lines(found, opt.with_score))
        output.flush()
    if isinstance(output, io.StringIO):
        write_result(opt.output, output.getvalue())


def build(opt: Namespace, quiet: bool = False) -> Any:
    """Build the translator, and check the options that depend on the model."""
    from onmt_varattn.nmt.model.building import AlignmentModel

    ArgumentParser.validate_translate_opts(opt)
    logger = None if quiet else start_logging(opt.log_file)
    translator = Loaded.from_opt(opt).translator(opt, report_score=not quiet, logger=logger)
    if opt.align_debug and not translator.report_align:
        raise UserError("-align_debug is for transformers with -report_align; use -attn_debug")
    if opt.dump_attention and not isinstance(translator.model, AlignmentModel):
        raise UserError(
            f"-dump_attention: {' '.join(opt.models)} is not a single model trained with -attention; "
            "-attn_debug prints the attention of any model"
        )
    return translator


def warn_of_misfits(opt: Namespace, translator: Any, texts: dict[str, list[str] | None]) -> None:
    """Warn if many words of a text are unknown to the model.

    Args:
        opt: all options.
        translator: the translator, with its model.
        texts: lines of "src" and, if given, "tgt".
    """
    if not isinstance(translator, Translator):  # a language model has one language
        return
    sides = sides_of(translator.fields, translator.processing)
    for side, lines in texts.items():
        some = [line for line in lines or () if line.strip()][:SAMPLE]
        tokens = [token for line in some for token in translator.encode(line, side).split()]
        unknown = unknown_share(tokens, set(sides[side].vocab.itos))
        warn_of_misfit(sides, side, some, unknown, " ".join(opt.models), getattr(opt, side))


def hypotheses(translator: Any, lines: Sequence[str], **kwargs: Any) -> list[list[Any]]:
    """Translations of lines: `len(lines)` x n_best."""
    if isinstance(translator, Translator):
        return translator.hypotheses(lines, **kwargs)
    scores, texts = translator.translate(lines, **kwargs)  # a language model continues its lines
    return [
        [Hypothesis(score, text, links=None) for score, text in zip(*both, strict=True)]
        for both in zip(scores, texts, strict=True)
    ]


@dataclass
class Dump:
    """The file of -dump_attention, if the option is given.

    Attributes:
        write: function of raw source lines, translations and references.
        error: reason why the file could not be written.
    """

    write: Callable[..., None] = lambda *_: None
    error: OSError | None = None


@contextlib.contextmanager
def dump(opt: Namespace, translator: Any) -> Iterator[Dump]:
    """Open the file of -dump_attention; if it cannot be written, translation continues without it."""
    dumped, translated = Dump(), False
    if not opt.dump_attention:
        yield dumped
        return
    model_opt = translator.model_opt
    reader = Reader(translator.model, translator.fields, opt.batch_size)

    def tokens(lines: list[str], side: str) -> list[list[str]]:
        return [translator.encode(line, side).split() for line in lines]

    def write(source: list[str], translations: list[list[Any]], target: list[str] | None) -> None:
        best = [line[0] for line in translations]
        try:
            attention.write(tokens(source, "src"), best, None if target is None else tokens(target, "tgt"))
        except OSError as error:
            dumped.write, dumped.error = Dump.write, error

    try:
        with atomic_write(opt.dump_attention) as file:
            attention = AttentionDump(file, reader, exact=model_opt.attention != "relaxed")
            dumped.write = write
            yield dumped
            translated = True  # later failures concern the file only
            if dumped.error is not None:
                raise dumped.error
    except OSError as error:
        if not translated:
            raise
        dumped.error = error


def read_features(opt: Namespace, lines: int) -> dict[str, list[str]]:
    """Read source features by name; the option is a Python dict of files, as in OpenNMT-py."""
    if not opt.src_feats:
        return {}
    try:
        paths = dict(ast.literal_eval(opt.src_feats))
    except (ValueError, SyntaxError):
        raise UserError(f"-src_feats {opt.src_feats}: write a dict such as {{'name': 'file'}}") from None
    features = {name: read_lines(path) for name, path in paths.items()}
    for name, values in features.items():
        check_parallel([opt.src, paths[name]], [lines, len(values)])
    return features


@contextlib.contextmanager
def progress_bar(translator: Any, source: Sequence[str]) -> Iterator[None]:
    """Show the number of translated sentences."""
    characters = sum(map(len, source))
    with progress(total=len(source), desc="translating", unit="sentences", work=characters) as bar:
        translator.progress = bar
        yield
        translator.progress = None
        bar.update(len(source) - bar.n)  # empty lines are not in any batch


@contextlib.contextmanager
def unless_interrupted(path: str) -> Iterator[None]:
    """On Ctrl-C, report that the output is not written."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{path} is not written", file=sys.stderr)
        raise


def output_lines(found: Iterable[list[Any]], with_score: bool) -> Iterator[str]:
    """n_best output lines per source line, with their scores if `with_score`."""
    for line in found:
        for hypothesis in line:
            yield f"{hypothesis}\t{float(hypothesis.score):.4f}" if with_score else str(hypothesis)
