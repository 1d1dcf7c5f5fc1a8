"""Every cell of the table objective x estimator, from the command line: train, resume, translate."""

import json
import re

import pytest
import torch

import onmt_varattn
from onmt_varattn.bin.nmt import train, translate
from onmt_varattn.errors import UserError
from onmt_varattn.latent.objectives import OBJECTIVES
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.text.processing import TextProcessing
from tests.conftest import SIZES, STEPS, at_once, call

CELLS = [
    f"-attention {name}" + ("" if estimator == "none" else f" -attention_estimator {estimator}")
    for name, objective in OBJECTIVES.items()
    for estimator in objective.estimators
]
VARIANTS = [
    "-attention variational",
    "-attention variational -posterior_rnn brnn",
    "-attention variational -posterior_rnn rnn -posterior_rnn_size 14 -posterior_layers 2 -posterior_dropout 0.2",
    "-attention variational -posterior_rnn mean -rnn_type GRU",
    "-attention variational -posterior svi -svi_steps 2 -svi_lr 0.5",
    "-attention variational -posterior savi -svi_steps 2",
    "-attention variational -attention_estimator gumbel -gumbel_hard -gumbel_temperature 1 "
    "-gumbel_min_temperature 0.5 -gumbel_anneal_steps 4",
    "-attention variational -attention_estimator sparse -sparse_function sparsemax",
    "-attention variational -attention_warmup_steps 3 -kl_warmup_steps 3 -kl_weight 0.5 -attention_samples 3",
    "-attention variational -baseline average -label_smoothing 0.1",
    "-attention hard -reward_weight 0.5 -entropy_weight 0.01 -baseline none",
    "-attention relaxed -attention_warmup_steps 2 -attention_samples 2",
    "-attention variational -posterior savi -svi_steps 2 -null_alignment",
    "-attention variational -baseline learned -attention_warmup_steps 3 -input_feed 0",
    "-attention variational -attention_estimator iwae -baseline learned -input_feed 0 -layers 2 -rnn_type GRU",
    "-attention relaxed -relaxed_distribution logistic_normal",
    "-attention relaxed -relaxed_distribution concrete -gumbel_temperature 0.7",
]
FEW = "-train_steps 6 -valid_steps 6 -report_every 3 -batch_size 16"


def run(data, directory, flags, name="m"):
    words = f"-config {data}.yaml {SIZES} {STEPS} {FEW} {at_once(flags)} -save_model {directory}/{name}"
    assert call(train.main, *words.split(), "-log_file", directory / f"{name}.log") == 0
    return directory / f"{name}_step_6.pt"


def generative(path):
    """Parameters of the model, without the posterior's."""
    loaded = checkpoint.load(str(path))
    values = {**loaded["model"], **{f"generator.{k}": v for k, v in loaded["generator"].items()}}
    return {name: value for name, value in values.items() if not name.startswith("posterior.")}


@pytest.mark.parametrize("flags", [*CELLS, *VARIANTS])
def test_every_cell_trains_resumes_and_translates(data, toy, tmp_path, flags):
    model = run(data, tmp_path, flags)
    values = generative(model)
    assert all(torch.isfinite(value).all() for value in values.values())
    more = f"{flags} -train_from {model} -train_steps 9 -valid_steps 9"
    words = f"-config {data}.yaml {STEPS} {FEW} {more} -save_model {tmp_path}/more"
    assert call(train.main, *words.split()) == 0
    after = generative(tmp_path / "more_step_9.pt")
    assert any(not torch.equal(after[name], values[name]) for name in values)
    relaxed = "relaxed" in flags
    ways = ["", "-test_attention soft"] + (
        ["-attention_samples 3"] if relaxed else ["-kmax 2", "-test_attention exact"]
    )
    for way in ways:
        words = (
            f"-model {model} -src {toy}/test.de -output {tmp_path}/out -beam 2 -max_length 5 -seed 1 {way}"
        )
        assert call(translate.main, *words.split()) == 0
        assert len((tmp_path / "out").read_text("utf-8").split("\n")) == 31


def test_all_objectives_share_the_generative_parameters(data, tmp_path):
    shapes = [
        {
            name: value.shape
            for name, value in generative(run(data, tmp_path, f"-attention {name}", name)).items()
        }
        for name in OBJECTIVES
    ]
    assert all(found == shapes[0] for found in shapes)


def test_a_model_can_go_on_with_another_objective(model, data, tmp_path):
    """Soft, then variational (a posterior is made), then marginal (it is left out)."""
    start = generative(model)
    words = (
        f"-config {data}.yaml {STEPS} -train_from {model} -train_steps 301 -valid_steps 301 -learning_rate 0"
    )
    flags = "-attention variational -posterior_rnn mean -reset_optim states"
    assert call(train.main, *words.split(), *flags.split(), "-save_model", tmp_path / "v") == 0
    loaded = checkpoint.load(str(tmp_path / "v_step_301.pt"))
    assert loaded["opt"].attention == "variational"
    assert any(name.startswith("posterior.") for name in loaded["model"])
    assert start.keys() == generative(tmp_path / "v_step_301.pt").keys()
    words = words.replace(str(model), f"{tmp_path}/v_step_301.pt").replace("301", "302")
    words = words.replace(f"{tmp_path}/v_step_302", f"{tmp_path}/v_step_301")
    assert call(train.main, *words.split(), "-attention", "marginal", "-save_model", tmp_path / "m") == 0
    loaded = checkpoint.load(str(tmp_path / "m_step_302.pt"))
    assert loaded["opt"].attention == "marginal"
    assert not any(name.startswith("posterior.") for name in loaded["model"])
    assert start.keys() == generative(tmp_path / "m_step_302.pt").keys()


def test_a_relaxed_model_goes_on_with_another_distribution(data, tmp_path):
    model = run(data, tmp_path, "-attention relaxed -relaxed_distribution concrete")
    words = (
        f"-config {data}.yaml {STEPS} {FEW} -train_from {model} -train_steps 9 -save_model {tmp_path}/more"
    )
    assert call(train.main, *words.split(), "-relaxed_distribution", "dirichlet") == 0
    assert checkpoint.load(str(tmp_path / "more_step_9.pt"))["opt"].relaxed_distribution == "dirichlet"


def test_what_is_fed_back_is_the_checkpoints_business(model, data, tmp_path, capsys):
    words = f"-config {data}.yaml {STEPS} {FEW} -train_from {model} -input_feed 0 -save_model {tmp_path}/more"
    assert call(train.main, *words.split()) == 2
    assert "-input_feed 0: " in capsys.readouterr().err
    other = run(data, tmp_path, "-attention soft -input_feed 0")
    words = f"-config {data}.yaml {STEPS} {FEW} -train_from {other} -train_steps 9 -save_model {tmp_path}/on"
    assert call(train.main, *words.split()) == 0
    assert checkpoint.load(str(tmp_path / "on_step_9.pt"))["opt"].input_feed == 0


def test_carried_over_parameters_are_the_saved_ones(model, data, tmp_path):
    flags = f"-config {data}.yaml {STEPS} -train_from {model} -attention variational -posterior_rnn mean"
    words = (
        f"{flags} -train_steps 2 -valid_steps 2 -learning_rate 0 -reset_optim all -save_model {tmp_path}/v"
    )
    assert call(train.main, *words.split()) == 0
    saved, carried = generative(model), generative(next(tmp_path.glob("v_step_*.pt")))
    for name in saved:
        assert torch.equal(carried[name], saved[name]), name


def test_the_posterior_never_influences_a_translation(data, toy, tmp_path):
    model = run(data, tmp_path, "-attention variational")
    loaded = checkpoint.load(str(model))
    for name, value in loaded["model"].items():
        if name.startswith("posterior."):
            value.normal_()
    checkpoint.write(loaded, str(tmp_path / "noise.pt"))
    lines = (toy / "test.de").read_text("utf-8").splitlines()
    out = [
        onmt_varattn.load(str(path), max_length=8).translate(lines) for path in (model, tmp_path / "noise.pt")
    ]
    assert out[0] == out[1]


def test_ways_of_decoding_differ_and_large_k_is_exact(model, toy):
    lines = (toy / "test.de").read_text("utf-8").splitlines()
    ways = {"soft": {}, "exact": {"test_attention": "exact"}, "k1": {"kmax": 1}, "k99": {"kmax": 99}}
    loaded = {way: onmt_varattn.load(str(model), max_length=12, **options) for way, options in ways.items()}
    out = {way: m.translate(lines, with_score=True) for way, m in loaded.items()}
    assert [t for t, _ in out["k99"]] == [t for t, _ in out["exact"]]
    for (_, a), (_, b) in zip(out["k99"], out["exact"], strict=True):
        assert a == pytest.approx(b, abs=1e-4)
    scores = {way: [score for _, score in pairs] for way, pairs in out.items()}
    assert scores["soft"] != scores["exact"] != scores["k1"]
    for both in ([model], [model, model]):  # an ensemble of a model with itself is that model
        one = onmt_varattn.load(*map(str, both), max_length=12)
        for way in ("k1", "exact", "soft"):
            asked = one.translate(lines, with_score=True, **ways[way])
            assert [t for t, _ in asked] == [t for t, _ in out[way]], "options of a call hold for the call"
            assert [s for _, s in asked] == pytest.approx(scores[way], abs=1e-4)


def test_exact_scores_do_not_depend_on_the_batch(data, toy, tmp_path):
    model = run(data, tmp_path, "-attention marginal")
    lines = (toy / "test.de").read_text("utf-8").splitlines()
    loaded = onmt_varattn.load(str(model), max_length=8)
    one, many = (loaded.translate(lines, batch_size=size, with_score=True) for size in (1, 30))
    assert [t for t, _ in one] == [t for t, _ in many]
    for (_, a), (_, b) in zip(one, many, strict=True):
        assert a == pytest.approx(b, abs=2e-4)


def test_reports_go_to_the_log_to_tensorboard_and_to_json_lines(data, tmp_path):
    flags = f"-attention variational -tensorboard -tensorboard_log_dir {tmp_path}/board"
    run(data, tmp_path, flags)
    lines = [json.loads(line) for line in (tmp_path / "m.metrics.jsonl").read_text().splitlines()]
    assert [(line["part"], line["step"]) for line in lines] == [("train", 3), ("train", 6), ("valid", 6)]
    for line in lines:
        assert line["elbo"] == pytest.approx(-line["xent"] - line["kl"], abs=1e-6)
        assert {"prior_entropy", "posterior_entropy", "exp_elbo", "ppl", "accuracy"} <= line.keys()
    assert {"reward", "reward_variance"} <= lines[0].keys()
    valid = lines[-1]
    assert valid["ppl"] <= valid["exp_elbo"] + 1e-6, "the exact perplexity cannot be above its bound"
    log = (tmp_path / "m.log").read_text()
    assert re.search(r"Validation elbo: |posterior_entropy: ", log)
    assert any((tmp_path / "board").rglob("events.*"))
    run(data, tmp_path, "-attention variational -metrics_file none", "quiet")
    assert not (tmp_path / "quiet.metrics.jsonl").exists()


def test_training_with_samples_is_deterministic(data, tmp_path):
    values = [generative(run(data, tmp_path, "-attention variational", name)) for name in ("a", "b")]
    for name in values[0]:
        assert torch.equal(values[0][name], values[1][name]), name


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("-attention marginal -attention_estimator sample", "use enum"),
        ("-attention soft -attention_estimator enum", "leave it out"),
        ("-attention hard -attention_estimator gumbel", "use sample or enum"),
        ("-attention soft -posterior_rnn brnn", "-posterior_rnn does not go with -attention soft"),
        ("-attention marginal -posterior svi", "-posterior does not go with"),
        ("-attention variational -posterior svi -posterior_rnn brnn", "-posterior_rnn does not go with"),
        ("-attention variational -posterior svi -attention_estimator sample", "use enum"),
        ("-attention variational -svi_steps 5", "-svi_steps does not go with"),
        (
            "-attention variational -attention_estimator enum -attention_samples 3",
            "-attention_samples does not go",
        ),
        ("-attention variational -attention_estimator vimco -attention_samples 1", "needs at least 2"),
        ("-attention variational -gumbel_temperature 1", "-gumbel_temperature does not go with"),
        ("-attention variational -gumbel_hard", "-gumbel_hard does not go with"),
        ("-attention variational -attention_estimator rws -kl_weight 1", "-kl_weight does not go with"),
        ("-attention variational -attention_estimator enum -baseline soft", "-baseline does not go with"),
        ("-attention variational -entropy_weight 1", "-entropy_weight does not go with"),
        ("-attention marginal -label_smoothing 0.1", "-label_smoothing 0.1 does not go with"),
        ("-attention relaxed -kmax 3", "-attention relaxed"),
        ("-attention marginal -kmax 3 -test_attention soft", "leave one of them out"),
        ("-attention variational -posterior_rnn_size 7", "must be even"),
        ("-attention variational -attention_warmup_steps -1", "must not be negative"),
        ("-kmax 3", "models trained with -attention"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(data, tmp_path, flags, words, capsys):
    line = f"-config {data}.yaml {SIZES} {STEPS} {flags} -save_model {tmp_path}/m"
    if "-attention" not in flags:
        line = line.replace("-enc_rnn_size 32 -dec_rnn_size 36 -attention_size 20", "-rnn_size 8")
    assert call(train.main, *line.split()) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.strip().count("\n") == 0
    assert list(tmp_path.iterdir()) == []


def test_samples_are_refused_for_models_without_mixtures(model, toy, tmp_path, capsys):
    words = f"-model {model} -src {toy}/test.de -output {tmp_path}/out -attention_samples 2"
    assert call(translate.main, *words.split()) == 2
    assert "-attention_samples 2 is for models trained with -attention relaxed" in capsys.readouterr().err


def test_kmax_is_refused_for_relaxed_and_stock_models(data, toy, tmp_path, capsys):
    for name, flags in (
        ("ours", "-attention relaxed"),
        ("stock", "-rnn_size 8 -enc_rnn_size 8 -dec_rnn_size 8"),
    ):
        model = run(data, tmp_path, flags, name)
        capsys.readouterr()
        words = f"-model {model} -src {toy}/test.de -output {tmp_path}/out -kmax 2"
        assert call(translate.main, *words.split()) == 2
        assert "-kmax" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", ["-attention variational", "-attention variational -attention_estimator sparse"]
)
def test_prior_posterior_and_exact_attention_from_python(data, toy, tmp_path, flags):
    loaded = onmt_varattn.load(str(run(data, tmp_path, flags)))
    source, target = ((toy / f"test.{side}").read_text("utf-8").splitlines()[0] for side in ("de", "en"))
    found = [loaded.attention(source, target, kind).probs for kind in ("prior", "posterior", "exact")]
    for probs in found:
        assert probs.shape == (len(target.split()), len(source.split()))
        assert torch.allclose(probs.sum(1), probs.new_ones(()), atol=1e-5)
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[0], found[2], atol=1e-6)
    with pytest.raises(UserError, match="no attention 'posteriour'"):
        loaded.attention(source, target, "posteriour")


def test_a_model_without_an_inference_network_has_no_posterior(model, toy):
    source, target = ((toy / f"test.{side}").read_text("utf-8").splitlines()[0] for side in ("de", "en"))
    loaded = onmt_varattn.load(str(model))
    with pytest.raises(UserError, match="has no posterior"):
        loaded.attention(source, target, "posterior")
    exact = loaded.attention(source, target, "exact").probs
    assert torch.allclose(exact.sum(1), exact.new_ones(()), atol=1e-5)


@pytest.fixture(scope="module")
def aligned(toy, tmp_path_factory):
    """The toy corpus with its gold alignments, preprocessed."""
    from onmt_varattn.bin.nmt import preprocess

    prefix = tmp_path_factory.mktemp("aligned") / "run"
    words = " ".join(
        f"-{part}_{option} {toy}/{part}.{ending}"
        for part in ("train", "valid")
        for option, ending in (("src", "de"), ("tgt", "en"), ("align", "align"))
    )
    assert call(preprocess.main, *words.split(), "-save_data", prefix, "-vocab_size", 400) == 0
    return prefix


def test_links_between_words_become_links_between_subwords(aligned, toy):
    """Merging the subwords' links back gives the gold ones."""
    from onmt_varattn.analysis.alignment import parse_pharaoh
    from onmt_varattn.nmt.text.processing import TextProcessing

    text = TextProcessing.load(f"{aligned}.text.json")
    gold = (toy / "train.align").read_text().splitlines()
    parts = [
        open(f"{aligned}.train.{part}", encoding="utf-8").read().splitlines()
        for part in ("src", "tgt", "align")
    ]
    assert len(parts[2]) == len(gold)
    more = 0
    for source, target, links, right in zip(*parts, gold, strict=True):
        source_words, target_words = text.src.words(source.split()), text.tgt.words(target.split())
        found = parse_pharaoh(links, "x")
        merged = {(source_words[i], target_words[j]) for i, j in found}
        assert merged == parse_pharaoh(right, "x")
        more += len(found) - len(merged)
    assert more > 0


@pytest.mark.parametrize("estimator", ["sample", "enum", "rws"])
def test_an_external_posterior_trains_and_translates(aligned, toy, tmp_path, estimator):
    flags = f"-attention variational -posterior external -attention_estimator {estimator} -posterior_smoothing 0.2"
    model = run(aligned, tmp_path, flags)
    assert not any(name.startswith("posterior.") for name in checkpoint.load(str(model))["model"])
    metrics = [json.loads(line) for line in (tmp_path / "m.metrics.jsonl").read_text().splitlines()]
    assert 0 < metrics[-1]["posterior_entropy"] < metrics[-1]["prior_entropy"]
    words = (
        f"-config {aligned}.yaml {STEPS} {FEW} -train_from {model} -train_steps 9 -save_model {tmp_path}/more"
    )
    assert call(train.main, *words.split()) == 0
    out = onmt_varattn.load(str(model), max_length=6).translate(
        (toy / "test.de").read_text("utf-8").splitlines()
    )
    assert len(out) == 30


def test_an_external_posterior_needs_alignments(data, tmp_path, capsys):
    words = f"-config {data}.yaml {SIZES} -attention variational -posterior external -save_model {tmp_path}/m"
    assert call(train.main, *words.split()) == 2
    assert "corpus corpus_1 has no path_align" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0-0\n", "has 1; parallel files need as many"),
        ("x\n" * 1000, "line 1: not an alignment"),
        ("99-0\n" * 1000, "link 99-0 is outside"),
    ],
)
def test_bad_alignments_are_refused(toy, tmp_path, content, words, capsys):
    from onmt_varattn.bin.nmt import preprocess

    (tmp_path / "bad").write_text(content)
    files = " ".join(
        f"-{part}_{side} {toy}/{part}.{ending}"
        for part in ("train", "valid")
        for side, ending in (("src", "de"), ("tgt", "en"))
    )
    line = f"{files} -train_align {tmp_path}/bad -valid_align {toy}/valid.align -save_data {tmp_path}/d -vocab_size 400"
    assert call(preprocess.main, *line.split()) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_gold_scores_are_exact_log_likelihoods(data, toy, tmp_path):
    """translate -tgt against the validation loss on the same sentences."""
    from onmt_varattn.latent import Exact

    path = run(data, tmp_path, "-attention marginal")
    log = tmp_path / "translate.log"
    for part, side in (("src", "de"), ("tgt", "en")):
        lines = (toy / f"test.{side}").read_text("utf-8").splitlines()[:6]
        (tmp_path / part).write_text("".join(line + "\n" for line in lines), "utf-8")
    words = f"-model {path} -src {tmp_path}/src -tgt {tmp_path}/tgt -output {tmp_path}/out -max_length 3 -log_file {log}"
    assert call(translate.main, *words.split()) == 0
    gold = float(re.search(r"GOLD SCORE: (-[\d.]+)", log.read_text())[1]) * 6

    loaded = onmt_varattn.load(str(path))
    text = TextProcessing.from_dict(loaded.model_opt.text_processing)
    total = 0.0
    for source, target in zip((tmp_path / "src").open(), (tmp_path / "tgt").open(), strict=True):
        fields = [loaded.fields[side].base_field for side in ("src", "tgt")]
        src, tgt = (
            torch.tensor([field.vocab.stoi[token] for token in line]).view(-1, 1, 1)
            for field, line in zip(
                fields,
                (text.src.encode(source).split(), ["<s>", *text.tgt.encode(target).split(), "</s>"]),
                strict=True,
            )
        )
        with torch.no_grad():
            trace, _ = loaded.model(src, tgt, torch.tensor([len(src)]))
        words = tgt[1:, :, 0].t()
        inference = loaded.model.decoder.attention.inference(trace.positions(words, words != 1))
        total += inference.mixture(Exact()).log_marginal.sum().item()
    assert gold == pytest.approx(total, abs=1e-2)


def test_an_ensemble_may_mix_objectives(model, data, toy, tmp_path):
    other = run(data, tmp_path, "-attention variational")
    lines = (toy / "test.de").read_text("utf-8").splitlines()
    both = onmt_varattn.load(str(model), str(other), max_length=8, kmax=2).translate(lines)
    assert len(both) == len(lines)
    assert both != onmt_varattn.load(str(model), max_length=8, kmax=2).translate(lines)


def test_another_posterior_on_resume(aligned, tmp_path):
    """External, then amortized, then svi, then marginal: each can be translated with."""
    start = run(aligned, tmp_path, "-attention variational -posterior external -attention_estimator enum")
    flags = ["-posterior amortized", "-posterior svi -svi_steps 2", "-attention marginal"]
    for i, flag in enumerate(flags):
        words = f"-config {aligned}.yaml {STEPS} -train_from {start} -train_steps {7 + i} -valid_steps 99"
        assert call(train.main, *words.split(), *flag.split(), "-save_model", tmp_path / f"m{i}") == 0
        start = tmp_path / f"m{i}_step_{7 + i}.pt"
        assert onmt_varattn.load(str(start), max_length=3).translate(["der hund ."])
        names = checkpoint.load(str(start))["model"]
        assert any(name.startswith("posterior.") for name in names) == ("amortized" in flag)


def test_straight_through_draws_are_kept_on_resume(data, tmp_path):
    start = run(data, tmp_path, "-attention variational -attention_estimator gumbel -gumbel_hard")
    words = f"-config {data}.yaml {STEPS} -train_from {start} -train_steps 7 -save_model {tmp_path}/more"
    assert call(train.main, *words.split()) == 0
    assert checkpoint.load(str(tmp_path / "more_step_7.pt"))["opt"].gumbel_hard


def test_metrics_go_into_a_new_directory_and_a_bad_one_is_refused(data, tmp_path, capsys):
    run(data, tmp_path, f"-attention soft -metrics_file {tmp_path}/new/metrics.jsonl")
    assert (tmp_path / "new/metrics.jsonl").exists()
    capsys.readouterr()
    words = f"-config {data}.yaml {SIZES} -attention soft -metrics_file {tmp_path}/m.log/x -save_model {tmp_path}/n"
    assert call(train.main, *words.split()) == 2
    assert "cannot be written" in capsys.readouterr().err
