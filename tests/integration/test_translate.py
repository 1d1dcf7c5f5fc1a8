"""onmt_translate and the Python API: raw text in, raw text out, line by line."""

import io
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
import sacrebleu

import onmt_varattn
from onmt_varattn.bin.analysis import evaluate
from onmt_varattn.bin.nmt import average_models, release_model, translate, translate_dynamic
from onmt_varattn.errors import UserError
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.text.processing import TextProcessing
from tests.conftest import ROOT, call

SHORT = ["-max_length", "12"]


@pytest.fixture(scope="module")
def raw(toy):
    """Raw source lines, with an empty one and a blank one among them."""
    lines = (toy / "test.de").read_text("utf-8").splitlines()[:10]
    return [*lines[:3], "", *lines[3:6], "   ", *lines[6:]]


@pytest.fixture
def source(raw, tmp_path):
    path = tmp_path / "raw.de"
    path.write_text("".join(line + "\n" for line in raw), "utf-8")
    return path


def translations(model, source, output, *flags):
    assert call(translate.main, "-model", model, "-src", source, "-output", output, *SHORT, *flags) == 0
    return output.read_text("utf-8").split("\n")[:-1]


def test_lines_keep_their_order_and_count(model, source, raw, tmp_path):
    out = translations(model, source, tmp_path / "out")
    assert len(out) == len(raw)
    assert out[3] == out[7] == ""
    assert len(set(out)) > 5, "translations that are all alike would hide a wrong order"
    loaded = onmt_varattn.load(str(model), max_length=12)
    assert out == [loaded.translate([line])[0] for line in raw]


def test_output_is_text_and_pretokenized_output_is_pieces(model, toy, data, tmp_path):
    out = translations(model, toy / "test.de", tmp_path / "out")
    pieces = translations(model, f"{data}.test.src", tmp_path / "pieces", "-pretokenized")
    assert any("▁" in line for line in pieces)
    text = TextProcessing.load(f"{data}.text.json")
    assert out == [text.tgt.decode(line) for line in pieces]


@pytest.mark.parametrize(
    "flags", ["-batch_size 1", "-batch_size 3", "-batch_size 100 -batch_type tokens", "-shard_size 4"]
)
def test_translations_do_not_depend_on_batches_or_shards(model, source, tmp_path, flags):
    right = translations(model, source, tmp_path / "a", "-beam", "4", "-with_score")
    found = translations(model, source, tmp_path / "b", "-beam", "4", "-with_score", *flags.split())
    assert [line.split("\t")[0] for line in found] == [line.split("\t")[0] for line in right]
    for a, b in zip(found, right, strict=True):
        assert float(a.split("\t")[1]) == pytest.approx(float(b.split("\t")[1]), abs=2e-4)


def test_n_best_and_scores(model, source, raw, tmp_path):
    out = translations(model, source, tmp_path / "out", "-beam", "4", "-n_best", "3", "-with_score")
    assert len(out) == 3 * len(raw)
    scores = [float(line.split("\t")[1]) for line in out]
    for i in range(0, len(out), 3):
        assert scores[i] >= scores[i + 1] >= scores[i + 2]
    assert len(set(out[:3])) == 3


def test_with_a_reference_it_prints_scores_and_their_signatures(model, toy, tmp_path, capsys):
    out = translations(model, toy / "test.de", tmp_path / "out", "-tgt", toy / "test.en")
    printed = capsys.readouterr().out
    reference = (toy / "test.en").read_text("utf-8").splitlines()
    right = sacrebleu.corpus_bleu(out, [reference], force=True).score
    assert f" = {right:.2f} " in printed
    assert "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in printed
    for score, signature in (
        (sacrebleu.corpus_chrf, "chrF2|nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:"),
        (sacrebleu.corpus_ter, "TER|nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:"),
    ):
        assert f" = {score(out, [reference]).score:.2f}\n" in printed
        assert signature in printed


def perplexities(log):
    """PRED PPL and GOLD PPL of a log, the last of each."""
    return {
        name: float(ppl) for name, ppl in re.findall(r"(PRED|GOLD) PPL: ([\d.]+)", log.read_text("utf-8"))
    }


@pytest.mark.parametrize(
    "flags",
    ["", "-kmax 2", "-length_penalty wu -alpha 1 -eos_norm 3 -beam 3", "-shard_size 7 -batch_size 3"],
)
def test_gold_ppl_is_the_models_perplexity_per_token(model, toy, tmp_path, flags):
    """Against onmt_evaluate, which has likelihoods of its own; over all shards."""
    log, scores = tmp_path / "log", tmp_path / "scores.json"
    files = ["-src", toy / "test.de", "-tgt", toy / "test.en"]
    translations(model, toy / "test.de", tmp_path / "out", *files[2:], "-log_file", log, *flags.split())
    assert call(evaluate.main, "-model", model, *files, "-kmax", 2, "-json", scores) == 0
    (right,) = json.loads(scores.read_text("utf-8"))["models"]
    way = "kmax2" if "kmax" in flags else "soft"
    assert perplexities(log)["GOLD"] == pytest.approx(right["ppl"][way], rel=1e-4)
    assert f"NB SENTENCES: 30 NB TOKENS: {right['tokens']}" in log.read_text("utf-8").splitlines()[-1]


def test_pred_ppl_is_the_gold_ppl_of_the_translations(model, data, tmp_path):
    """With a length penalty, too, whose scores are no log probabilities; of translations that have an end."""
    src, pieces, log = (tmp_path / name for name in ("src", "pieces", "log"))
    flags = [
        "-pretokenized",
        "-length_penalty",
        "wu",
        "-alpha",
        "0.6",
        "-eos_norm",
        "0.1",
        "-max_length",
        "30",
    ]
    found = translations(model, f"{data}.test.src", pieces, *flags)
    lines = open(f"{data}.test.src", encoding="utf-8")
    ended = [line for line, words in zip(lines, found, strict=True) if len(words.split()) < 30]
    assert len(ended) > 5
    src.write_text("".join(ended), "utf-8")
    translations(model, src, pieces, *flags)
    translations(model, src, tmp_path / "out", *flags, "-tgt", pieces, "-log_file", log)
    ppl = perplexities(log)
    assert ppl["PRED"] == pytest.approx(ppl["GOLD"], rel=1e-4)
    assert len(set(re.findall(r"NB TOKENS: (\d+)", log.read_text("utf-8")))) == 1


def test_the_papers_decoding_settings(model, source, tmp_path):
    plain = translations(model, source, tmp_path / "a", "-beam", "10")
    flags = "-beam 10 -length_penalty wu -alpha 1 -eos_norm 3"
    assert translations(model, source, tmp_path / "b", *flags.split()) != plain


def test_sampling_and_greedy_search(model, source, raw, tmp_path):
    greedy = translations(model, source, tmp_path / "a", "-beam", "1")
    argmax = translations(
        model, source, tmp_path / "b", *["-random_sampling_topk", "1", "-beam", "1", "-seed", "3"]
    )
    assert argmax == greedy
    samples = translations(
        model, source, tmp_path / "c", *["-random_sampling_topk", "-1", "-beam", "1", "-seed", "3"]
    )
    assert len(samples) == len(raw)
    assert samples != greedy


def test_an_ensemble_of_one_model_twice_is_that_model(model, source, tmp_path):
    alone = translations(model, source, tmp_path / "a", "-with_score")
    path = tmp_path / "b"
    words = ["-model", model, model, "-src", source, "-output", path, *SHORT, "-with_score"]
    assert call(translate.main, *words) == 0
    both = path.read_text("utf-8").split("\n")[:-1]
    assert [line.split("\t")[0] for line in both] == [line.split("\t")[0] for line in alone]


def test_standard_input_is_translated_line_by_line(model, raw, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in raw)))
    assert call(translate.main, "-model", model, "-src", "-", *SHORT) == 0
    out = capsys.readouterr().out.split("\n")[:-1]
    assert out == onmt_varattn.load(str(model), max_length=12).translate(raw)


def test_a_line_is_answered_before_the_next_is_given(model, raw):
    process = subprocess.Popen(
        [sys.executable, "translate.py", "-model", str(model), "-src", "-", *SHORT],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    try:
        for line in raw[:2]:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith("\n")
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        watchdog.cancel()
        process.kill()


def test_python_api(model, raw):
    loaded = onmt_varattn.load(str(model))
    best = loaded.translate(raw, beam=4, max_length=12)
    scored = loaded.translate(raw, beam=4, n_best=2, max_length=12, with_score=True)
    assert [pair[0][0] for pair in scored] == best
    assert all(pair[0][1] >= pair[1][1] for pair in scored)
    assert loaded.translate([]) == []
    with pytest.raises(UserError, match="did you mean beam"):
        loaded.translate(raw, beem=4)
    with pytest.raises(TypeError, match="list of sentences"):
        loaded.translate("ein satz .")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-src", "nowhere.de"], "nowhere.de: cannot be read"),
        (["-src", "EMPTY"], "the file is empty"),
        (["-src", "SOURCE", "-tgt", "EMPTY"], "the file is empty"),
        (["-src", "SOURCE", "-tgt", "SHORT"], "12 lines"),
        (["-src", "LATIN1"], "line 2: not UTF-8"),
        (["-src", "SOURCE", "-model", "nowhere.pt"], "nowhere.pt: there is no such checkpoint"),
        (["-src", "SOURCE", "-model", "EMPTY"], "not a whole checkpoint"),
        (["-src", "SOURCE", "-n_best", "9"], "-n_best 9"),
        (["-src", "SOURCE", "-beem", "9"], "did you mean -beam"),
        (["-src", "-", "-tgt", "SOURCE"], "standard input"),
    ],
)
def test_mistakes_are_one_line_and_leave_the_output_alone(model, source, tmp_path, flags, words, capsys):
    (tmp_path / "EMPTY").write_text("")
    (tmp_path / "SHORT").write_text("a\n")
    (tmp_path / "LATIN1").write_bytes(b"a\nsch\xf6n\n")
    names = {"SOURCE": source, **{name: tmp_path / name for name in ("EMPTY", "SHORT", "LATIN1")}}
    output = tmp_path / "out"
    output.write_text("a good file")
    flags = [names.get(word, word) for word in flags]
    if "-model" not in flags:
        flags += ["-model", model]
    assert call(translate.main, *flags, "-output", output) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.strip().count("\n") == 0
    assert output.read_text() == "a good file"


def test_average_and_release_keep_what_translation_needs(model, source, tmp_path):
    earlier = model.parent / "soft_step_150.pt"
    average, released = tmp_path / "average.pt", tmp_path / "released.pt"
    assert call(average_models.main, "-models", earlier, model, "-output", average) == 0
    name = "decoder.attention.readout.query.weight"
    values = [checkpoint.load(str(path))["model"][name] for path in (earlier, model, average)]
    assert values[2].allclose((values[0] + values[1]) / 2, atol=1e-7)
    assert call(release_model.main, "-model", model, "-output", released) == 0
    assert checkpoint.load(str(released))["optim"] is None
    assert released.stat().st_size < model.stat().st_size
    right = translations(model, source, tmp_path / "a")
    assert translations(released, source, tmp_path / "b") == right
    assert not any("▁" in line for line in translations(average, source, tmp_path / "c"))


def test_average_refuses_models_that_differ(model, data, tmp_path, capsys):
    from onmt_varattn.bin.nmt import train

    words = f"-config {data}.yaml -attention soft -layers 1 -word_vec_size 8 -rnn_size 8 -train_steps 1 -save_model {tmp_path}/m"
    assert call(train.main, *words.split()) == 0
    capsys.readouterr()
    output = tmp_path / "out.pt"
    assert call(average_models.main, "-models", model, tmp_path / "m_step_1.pt", "-output", output) == 2
    assert "different kinds or sizes" in capsys.readouterr().err
    assert not output.exists()


def test_release_refuses_ctranslate2(model, tmp_path, capsys):
    words = ["-model", model, "-output", tmp_path / "ct2", "-format", "ctranslate2"]
    assert call(release_model.main, *words) == 2
    assert "use -format pytorch" in capsys.readouterr().err


def test_translate_dynamic_takes_raw_text_or_applies_transforms(model, toy, data, tmp_path):
    output = tmp_path / "out"
    words = ["-model", model, "-output", output, *SHORT]
    assert call(translate_dynamic.main, *words, "-src", toy / "test.de") == 0
    right = translations(model, toy / "test.de", tmp_path / "right")
    assert output.read_text("utf-8").split("\n")[:-1] == right
    transforms = ["-transforms", "filtertoolong", "-src", f"{data}.test.src"]
    assert call(translate_dynamic.main, *words, *transforms) == 0
    right = translations(model, f"{data}.test.src", tmp_path / "right", "-pretokenized")
    assert output.read_text("utf-8").split("\n")[:-1] == right


@pytest.mark.parametrize("way", [{}, {"kmax": 2}, {"test_attention": "exact"}])
def test_the_server_translates_raw_text(model, raw, tmp_path, way):
    conf = {
        "models_root": str(model.parent),
        "models": [{"id": 7, "model": model.name, "load": True, "opt": {"beam": 4, "max_length": 12, **way}}],
    }
    (tmp_path / "conf.json").write_text(json.dumps(conf))
    port = 18000 + hash(str(tmp_path)) % 2000
    words = f"import sys; from onmt_varattn.bin.nmt.server import main; main(['-ip', '127.0.0.1', '-port', '{port}', '-config', '{tmp_path}/conf.json'])"
    process = subprocess.Popen(
        [sys.executable, "-c", words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/translator/translate",
        data=json.dumps([{"src": line, "id": 7} for line in raw[:3]]).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        for _ in range(240):
            try:
                answer = json.load(urllib.request.urlopen(request, timeout=60))
                break
            except OSError:
                assert process.poll() is None, process.stdout.read().decode()
                time.sleep(0.5)
    finally:
        process.kill()
    right = onmt_varattn.load(str(model), beam=4, max_length=12, **way).translate(raw[:3])
    assert [line["tgt"] for line in answer[0]] == right


def test_attention_is_over_words_and_sums_to_one(model, toy):
    source = (toy / "test.de").read_text("utf-8").splitlines()[0]
    target = (toy / "test.en").read_text("utf-8").splitlines()[0]
    attention = onmt_varattn.load(str(model)).attention(source, target)
    assert (attention.source, attention.target) == (source.split(), target.split())
    assert attention.probs.shape == (len(target.split()), len(source.split()))
    assert attention.probs.sum(1).allclose(attention.probs.new_ones(()), atol=1e-6)
    with pytest.raises(UserError, match="at least one word"):
        onmt_varattn.load(str(model)).attention(source, " ")


def test_eight_bit_models_translate(model, raw):
    whole, small = (
        onmt_varattn.load(model, max_length=8, int8=flag).translate(raw[:3]) for flag in (False, True)
    )
    assert len(small) == 3
    assert all(isinstance(line, str) for line in small)
    assert whole[0].split()[:1] == small[0].split()[:1]


def test_options_of_the_command_line_alone_are_refused_from_python(model):
    with pytest.raises(UserError, match="'output' is for the command line"):
        onmt_varattn.load(str(model)).translate(["ein satz ."], output="f")


def test_a_source_is_never_written_over(model, source, capsys):
    before = source.read_text("utf-8")
    assert call(translate.main, "-model", model, "-src", source, "-output", source) == 2
    assert "is -src and would be written over" in capsys.readouterr().err
    assert source.read_text("utf-8") == before


def test_an_ensemble_of_models_that_do_not_fit_is_refused(model, toy, source, tmp_path, capsys):
    from onmt_varattn.bin.nmt import preprocess, train

    files = " ".join(
        f"-{part}_{s} {toy}/{part}.{e}"
        for part in ("train", "valid")
        for s, e in (("src", "de"), ("tgt", "en"))
    )
    assert call(preprocess.main, *f"{files} -save_data {tmp_path}/d -vocab_size 300".split()) == 0
    words = f"-config {tmp_path}/d.yaml -attention soft -layers 1 -rnn_size 8 -word_vec_size 8 -train_steps 1 -save_model {tmp_path}/m"
    assert call(train.main, *words.split()) == 0
    capsys.readouterr()
    words = ["-model", model, tmp_path / "m_step_1.pt", "-src", source, "-output", tmp_path / "out"]
    assert call(translate.main, *words) == 2
    assert "same preprocessed data" in capsys.readouterr().err
