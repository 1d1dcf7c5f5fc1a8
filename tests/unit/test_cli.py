"""Command lines: what is unknown or makes no sense is refused, in one line, with exit code 2."""

import os
import subprocess
import sys

import pytest
import torch

from onmt_varattn.errors import UserError
from onmt_varattn.nmt import settings
from onmt_varattn.nmt.data.files import check_corpora
from onmt_varattn.nmt.opennmt_names import NAMES
from onmt_varattn.nmt.parsers import train_parser, translate_parser, vocabulary_parser
from onmt_varattn.utils.cli import Parser, run
from tests import models
from tests.conftest import ROOT, call

TRAIN = ["-data", "x", "-src_vocab", "y"]
TRANSLATE = ["-model", "m", "-src", "s"]


def refused(parser, words, capsys):
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(words)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("-attentoin", "-attention"),
        ("-rnn_sise", "-rnn_size"),
        ("--globl_attention", "-global_attention"),
        ("-decay_on_platau", "-decay_on_plateau"),
    ],
)
def test_a_typo_is_named_with_the_nearest_option(typo, meant, capsys):
    error = refused(train_parser(), [*TRAIN, typo, "7"], capsys)
    assert f"unknown option -{typo.lstrip('-')}; did you mean {meant}?" in error


@pytest.mark.parametrize(
    "command",
    ["nmt.preprocess", "nmt.train", "nmt.translate", "nmt.translate_dynamic", "nmt.build_vocab", "vqa.train"],
)
def test_a_typo_is_named_first_and_without_importing_torch(command):
    """Required options are missing as well, and the answer must not take seconds."""
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['x', '-cofnig', 'a.yaml']\n"
        f"try: runpy.run_module('onmt_varattn.bin.{command}', run_name='__main__')\n"
        "finally: print(sorted({'torch', 'onmt'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert done.stderr.startswith("x: error: unknown option -cofnig")
    assert ("did you mean -config?" in done.stderr) == command.startswith("nmt")
    assert done.stderr.count("\n") == 1


def test_opennmt_is_imported_without_its_future_warnings():
    program = "import onmt_varattn.nmt.plugin as plugin; plugin.register()"
    done = subprocess.run([sys.executable, "-W", "default", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert "FutureWarning" not in done.stderr


def test_the_names_that_are_known_before_opennmt_is_imported_are_those_of_the_parsers():
    parsers = {
        "train": train_parser(),
        "build_vocab": vocabulary_parser(),
        "translate": translate_parser(),
        "translate_dynamic": translate_parser(dynamic=True),
    }
    for command, parser in parsers.items():
        options = {name.lstrip("-") for action in parser._actions for name in action.option_strings}
        assert {*NAMES[command], "h", "help"} == options, command


def test_required_options_can_be_in_a_config_file_and_the_message_says_so(capsys):
    error = refused(train_parser(), ["-attention", "soft"], capsys)
    assert (
        "-data/--data, -src_vocab/--src_vocab; give them on the command line, or in a file with -config"
        in error
    )


def test_a_mistyped_value_is_answered_with_the_nearest_choice(capsys):
    error = refused(train_parser(), [*TRAIN, "-attention", "variatonal"], capsys)
    assert "invalid choice: 'variatonal'; did you mean variational? (choose from soft, " in error
    error = refused(train_parser(), [*TRAIN, "-preset", "x"], capsys)
    assert "invalid choice: 'x' (choose from small, paper, transformer)" in error


def test_the_nearest_name_begins_alike(capsys):
    with pytest.raises(SystemExit):
        translate_parser().check_settable("bean")
    assert "unknown option bean; did you mean beam?" in capsys.readouterr().err


def test_hyphens_are_read_as_underscores():
    parser = translate_parser()
    assert parser.parse_args([*TRANSLATE, "--beam-size=7"]).beam_size == 7
    assert parser.parse_args([*TRANSLATE, "-max-length", "8"]).max_length == 8


def test_a_stray_value_is_named(capsys):
    assert "unexpected value '7'" in refused(translate_parser(), [*TRANSLATE, "-beam", "5", "7"], capsys)


def test_missing_and_bad_values_are_one_line(capsys):
    assert "-src" in refused(translate_parser(), ["-model", "m"], capsys)
    assert "soft" in refused(train_parser(), [*TRAIN, "-attention", "sofd"], capsys)


def config(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return ["-config", str(path)]


def test_config_files_know_our_options_and_refuse_unknown_keys(tmp_path, capsys):
    words = config(tmp_path, "data: x\nsrc_vocab: y\nattention: soft\nattention_size: 9\n")
    opt = train_parser().parse_args(words)
    assert (opt.attention, opt.attention_size) == ("soft", 9)
    words = config(tmp_path, "data: x\nsrc_vocab: y\nattentoin: soft\n")
    error = refused(train_parser(), words, capsys)
    assert "unknown key in the -config file: attentoin; did you mean attention?" in error


def test_one_config_file_serves_several_commands_but_a_command_line_does_not(tmp_path, capsys):
    shared = config(tmp_path, "data: x\nsave_data: z\nsrc_vocab: y\nattention: soft\ndump_samples: true\n")
    assert vocabulary_parser(siblings=[train_parser()]).parse_args(shared).save_data == "z"
    assert train_parser(siblings=[vocabulary_parser()]).parse_args(shared).attention == "soft"
    error = refused(train_parser(siblings=[vocabulary_parser()]), [*TRAIN, "-dump_samples"], capsys)
    assert "unknown option -dump_samples" in error


def test_beam_is_a_name_for_beam_size():
    parser = translate_parser()
    assert parser.parse_args([*TRANSLATE, "-beam", "7"]).beam_size == 7
    assert parser.parse_args([*TRANSLATE, "-beam_size", "8"]).beam_size == 8
    assert parser.parse_args(TRANSLATE).beam_size == 5


def test_help_shows_our_options_in_groups_with_defaults():
    text = train_parser().format_help()
    for words in ("Latent attention:", "-attention_size", "(default: zero)", "Training:"):
        assert words in text
    assert "Model- Attention" in text
    assert "-eos_norm" in translate_parser().format_help()


def test_run_prints_one_line_and_exits_with_two(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/onmt_train"])

    def command():
        raise UserError("a.de: the file is empty")

    with pytest.raises(SystemExit) as stop:
        run(command)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "onmt_train: error: a.de: the file is empty\n"


def test_ctrl_c_is_one_line(capsys):
    def command():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stop:
        run(command)
    assert stop.value.code == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("-copy_attn", "-copy_attn does not go with -attention"),
        ("-coverage_attn", "-coverage_attn"),
        ("-bridge", "-bridge"),
        ("-generator_function sparsemax", "-generator_function sparsemax"),
        ("-encoder_type transformer", "use rnn or brnn"),
        ("-decoder_type transformer", "use rnn"),
        ("-enc_rnn_size 5", "must be even"),
        ("-global_attention dot", r"equal -enc_rnn_size \(6\) and -dec_rnn_size \(7\)"),
        ("-global_attention none", "use mlp or general or dot or scaled_dot"),
        ("-decoder_init encoder -enc_layers 3 -layers -1", "equal -enc_layers"),
        ("-share_decoder_embeddings", r"-tgt_word_vec_size \(5\) and -dec_rnn_size \(7\)"),
        ("-attention_size -1", "must not be negative"),
        ("-dec_rnn_size 0", "-dec_rnn_size 0 must be at least 1"),
    ],
)
def test_models_that_make_no_sense_are_refused(flags, words):
    with pytest.raises(UserError, match=words):
        models.options(models.SMALL + flags)


def test_stock_models_are_checked_by_opennmt():
    with pytest.raises(AssertionError, match="same size"):
        models.options("-enc_rnn_size 6 -dec_rnn_size 7")


def test_the_default_score_depends_on_the_decoder():
    assert models.options().global_attention == "general"
    assert models.options("-attention soft").global_attention == "mlp"
    assert models.options("-attention soft -global_attention general").global_attention == "general"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("-world_size 2", "needs -gpu_ranks"),
        ("-gpu_ranks 0", "-gpu_ranks 0: torch finds no CUDA device"),
        ("-decay_on_plateau -1", "must not be negative"),
        ("-valid_steps 0", "-valid_steps 0 must be at least 1"),
        ("-attention soft -truncated_decoder 5", "-truncated_decoder"),
    ],
)
def test_training_runs_that_make_no_sense_are_refused(flags, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=words):
        settings.check_train(models.options(flags))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-beam", "0"], "-beam 0 must be at least 1"),
        (["-beam", "2", "-n_best", "3"], r"-n_best 3 must be between 1 and -beam \(2\)"),
        (["-batch_size", "0"], "-batch_size 0"),
        (["-eos_norm", "-1"], "-eos_norm -1.0 must not be negative"),
        (["-eos_norm", "1", "-random_sampling_topk", "5"], "beam search"),
        (["-gpu", "0"], "-gpu 0: torch finds no CUDA device"),
        (["-tgt_prefix"], "give them with -tgt"),
    ],
)
def test_translation_runs_that_make_no_sense_are_refused(flags, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=words):
        settings.check_translate(translate_parser().parse_args([*TRANSLATE, *flags]))


def test_corpora_are_checked_before_training(tmp_path):
    for name, content in {"a": "1\n2\n3", "b": "1\n2\n3\n", "c": "1\n2\n", "empty": ""}.items():
        (tmp_path / name).write_text(content)

    def corpus(source, target):
        return {"one": {"path_src": str(tmp_path / source), "path_tgt": str(tmp_path / target)}}

    check_corpora(corpus("a", "b"))
    with pytest.raises(UserError, match=r"a has 3 lines and .*c has 2"):
        check_corpora(corpus("a", "c"))
    with pytest.raises(UserError, match=r"corpus one: .*empty: the file is empty"):
        check_corpora(corpus("empty", "c"))


def test_help_tells_a_default_once(capsys):
    parser = Parser(prog="x")
    parser.add("-a", default=3, help="A.")
    parser.add("-b", help="B. Default: that of -a.")
    parser.add("-c", required=True, help="C.")
    with pytest.raises(SystemExit):
        parser.parse_args(["-h"])
    text = " ".join(capsys.readouterr().out.split())
    assert "A. (default: 3)" in text
    assert "B. Default: that of -a." in text
    assert text.count("efault") == 2


PROGRAM = """
import sys
from onmt_varattn.utils.cli import Parser, run
from onmt_varattn.utils.reading import input_lines

def large():
    for _ in range(10_000):
        print("one line of many")

def copy():
    for line in input_lines(sys.stdin, "standard input"):
        print(line, flush=True)

def ask_for_help():
    parser = Parser(prog="x")
    for number in range(500):  # more than is kept to be printed later
        parser.add(f"-option{number}", help="An option.")
    parser.parse_args(["-h"])

run({"small": lambda: print("x"), "large": large, "copy": copy, "help": ask_for_help}[sys.argv[1]])
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        *((f"{what} > /dev/full", "output: cannot be written: No space left") for what in ("small", "large", "help")),
        *((f"{what} >&-", "output: cannot be written: Bad file descriptor") for what in ("small", "large", "help")),
        ("copy < /dev/stdin > /dev/full", "output: cannot be written: No space left"),
        ("copy <&-", "input: cannot be read: Bad file descriptor"),
        ("copy <&- >&-", "input: cannot be read: Bad file descriptor"),
    ],
)  # fmt: skip
def test_a_stream_that_cannot_be_used_is_one_sentence(command, reason, unbuffered):
    """Python's own way is a traceback, silence, or exit code 120 after all seemed well."""
    done = subprocess.run(
        ["bash", "-c", f'"$1" -c "$2" {command}', "bash", sys.executable, PROGRAM],
        input="a line\n",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert f"-c: standard {reason}" in done.stderr


def test_a_full_disk_is_one_sentence_wherever_it_is_met(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["onmt_train"])

    def command():
        with open("/dev/full", "w") as file:
            file.write("x")

    with pytest.raises(SystemExit) as stop:
        run(command)
    assert stop.value.code == 1
    assert capsys.readouterr().err == "onmt_train: a file: cannot be written: No space left on device\n"
    with pytest.raises(FileNotFoundError):  # a mistake of ours, whose place must be seen
        run(lambda: open("/nowhere/at/all"))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_is_no_failure(unbuffered):
    done = subprocess.run(
        ["bash", "-c", '"$1" -c "$2" large | head -1; echo "${PIPESTATUS[0]}"', "", sys.executable, PROGRAM],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.stdout, done.stderr) == ("one line of many\n0\n", "")


def test_without_standard_error_results_are_as_ever():
    done = subprocess.run(
        ["bash", "-c", '"$1" -c "$2" small 2>&-', "", sys.executable, PROGRAM], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "x\n")


def test_every_command_is_run_by_the_one_function_that_keeps_all_this():
    commands = sorted((ROOT / "onmt_varattn/bin").rglob("[a-z]*.py"))
    assert len(commands) > 15
    for path in [*commands, ROOT / "onmt_varattn/__main__.py"]:
        main = path.read_text().split("def main(", 1)[1].split("\ndef ", 1)[0]
        assert "    run(lambda: " in main, path


def test_what_a_file_puts_into_a_message_stays_on_its_line(capsys):
    from onmt_varattn.errors import warn

    def fail():
        raise UserError("m.pt: a name\nonmt: done\x1b[31m \u2028ü")

    assert call(lambda words: run(fail)) == 2
    warn("a\nb")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith(r"m.pt: a name\nonmt: done\x1b[31m \u2028ü")
    assert lines[1] == r"warning: a\nb"
