"""Training, scoring and asking models of visual question answering, from the command line on."""

import dataclasses
import glob
import json
import math
import os
import re
import shutil
import tempfile

import numpy as np
import pytest
import torch

from onmt_varattn.bin.vqa import evaluate as vqa_evaluate
from onmt_varattn.bin.vqa import preprocess as vqa_preprocess
from onmt_varattn.bin.vqa import train as vqa_train
from onmt_varattn.training.checkpoints import saver as saving
from onmt_varattn.vqa import checkpoint
from onmt_varattn.vqa.data.answers import accuracy
from onmt_varattn.vqa.data.dataset import Data, Part, fixed_labels
from onmt_varattn.vqa.evaluation import LABEL_SEED
from tests.conftest import at_once, call
from tests.scenes import SIZES, prepare

RUN = (
    "-learning_rate 0.01 -dropout 0.2 -batch_size 16 -train_steps 30 -valid_steps 10 -report_every 7 "
    "-save_checkpoint_steps 9 -seed 5"
)
SAMPLED = "-attention variational -attention_estimator sample -baseline average"
ALL = [
    "-attention soft",
    "-attention marginal",
    "-attention hard -attention_estimator enum",
    "-attention hard -attention_estimator sample",
    "-attention variational -attention_estimator enum",
    "-attention variational -attention_estimator sample",
    "-attention variational -attention_estimator rws",
    "-attention variational -attention_estimator vimco",
    "-attention variational -attention_estimator gumbel",
    "-attention variational -attention_estimator sum_and_sample",
    "-attention variational -attention_estimator sparse",
    "-attention variational -attention_estimator enum -posterior svi",
    "-attention variational -attention_estimator enum -posterior savi",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("scenes"), draw_images=1)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A variational model that has seen a little."""
    prefix = str(tmp_path_factory.mktemp("model") / "m")
    train(data, prefix, "-attention variational -attention_estimator enum")
    return f"{prefix}_step_30.pt"


def train(data, prefix, flags=SAMPLED, run=RUN):
    return call(vqa_train.main, *f"-data {data} -save_model {prefix} {SIZES} {run} {at_once(flags)}".split())


def content(prefix, step=30):
    saved = checkpoint.load(f"{prefix}_step_{step}.pt")
    moments = {
        f"optim.{index}.{name}": value
        for index, state in saved["optim"]["optimizer"]["state"].items()
        for name, value in state.items()
    }
    return {
        **saved["model"],
        **moments,
        "stream": saved["training"]["streams"][0],
    }


def same(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def metrics(prefix):
    with open(f"{prefix}.metrics.jsonl") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("flags", ALL)
def test_every_objective_trains_validates_and_is_scored(data, tmp_path, flags):
    prefix = str(tmp_path / "m")
    assert (
        train(data, prefix, flags, "-train_steps 6 -valid_steps 3 -report_every 2 -batch_size 16 -dropout 0")
        == 0
    )
    lines = metrics(prefix)
    assert [(line["part"], line["step"]) for line in lines] == [
        ("train", 2), ("valid", 3), ("train", 4), ("train", 6), ("valid", 6),
    ]  # fmt: skip
    assert all(
        math.isfinite(line["nll"]) and line["ppl"] == pytest.approx(math.exp(line["nll"])) for line in lines
    )
    valid = lines[-1]
    if "variational" in flags:
        assert valid["elbo"] <= -valid["nll"] + 1e-5  # the bound is one
        assert valid["elbo"] == pytest.approx(-valid["xent"] - valid["kl"], abs=1e-5)
    out = str(tmp_path / "out.json")
    assert (
        call(vqa_evaluate.main, *f"-model {prefix}_step_6.pt -data {data} -part valid -json {out}".split())
        == 0
    )
    result = json.load(open(out))["models"][0]
    natural = "soft" if flags == "-attention soft" else "exact"
    assert result["natural"] == natural
    assert result["nll"][natural] == pytest.approx(valid["nll"], abs=1e-5)
    assert result["accuracy"][natural] == pytest.approx(valid["accuracy"])
    assert result["prior_entropy"] == pytest.approx(valid["prior_entropy"], abs=1e-5)
    assert result["nll"].keys() == {"exact", "soft", "kmax1", "kmax2", "kmax5"}


def test_scores_are_those_of_a_plain_loop(data, trained, tmp_path):
    out, answers = str(tmp_path / "out.json"), str(tmp_path / "answers.json")
    words = f"-model {trained} -data {data} -kmax 3 -json {out} -predictions {answers} -batch_size 7"
    assert call(vqa_evaluate.main, *words.split()) == 0
    result = json.load(open(out))["models"][0]
    loaded = checkpoint.Trained(trained, torch.device("cpu"))
    prepared = Data.load(data)
    part, model = prepared.part("test"), loaded.model
    labels = fixed_labels(part, LABEL_SEED)
    totals = {name: [] for name in ("nll", "expected", "kmax3", "score", "entropy", "exact_entropy")}
    predictions = []
    for i in range(len(part)):
        batch = part.batch([i])
        with torch.no_grad():
            positions = model(batch)
            prior = torch.softmax(positions.prior[0].double(), 0)
            states = torch.tanh(
                model.attention.readout.query(positions.queries)
                + model.attention.readout.context(batch.features[0])
            )
            probs = torch.softmax(model.attention.words(states).double(), 1)  # S x V
        mixture = prior @ probs
        predictions.append(prepared.answers[int(mixture.argmax())])
        entry = part.entry(i)
        totals["score"].append(accuracy(predictions[-1], entry["answers"]))
        if labels[i] < 0:
            continue
        totals["nll"].append(-math.log(mixture[labels[i]]))
        _, known, shares = part.shares([i])
        totals["expected"].append(-(torch.from_numpy(shares) * mixture[known].log()).sum().item())
        kept = prior.topk(min(3, len(prior)))
        totals["kmax3"].append(-math.log((kept.values / kept.values.sum()) @ probs[kept.indices, labels[i]]))
        totals["entropy"].append(-(prior * prior.log()).sum().item())
        posterior = prior * probs[:, labels[i]]
        posterior = posterior / posterior.sum()
        totals["exact_entropy"].append(-(posterior * posterior.log()).sum().item())
    mean = {name: float(np.mean(values)) for name, values in totals.items()}
    assert result["nll"]["exact"] == pytest.approx(mean["nll"], abs=1e-5)
    assert result["nll"]["kmax3"] == pytest.approx(mean["kmax3"], abs=1e-5)
    assert result["expected_nll"]["exact"] == pytest.approx(mean["expected"], abs=1e-5)
    assert result["accuracy"]["exact"] == pytest.approx(100 * mean["score"])
    assert result["prior_entropy"] == pytest.approx(mean["entropy"], abs=1e-5)
    assert result["exact_posterior_entropy"] == pytest.approx(mean["exact_entropy"], abs=1e-5)
    assert (result["questions"], result["labelled"]) == (len(part), len(totals["nll"]))
    written = json.load(open(answers))
    assert [line["answer"] for line in written] == predictions
    assert [line["question_id"] for line in written] == [
        part.entry(i)["question_id"] for i in range(len(part))
    ]
    kinds = {part.entry(i)["answer_type"] for i in range(len(part))}
    assert result["accuracy_by_type"].keys() == kinds


def test_boxes_are_compared_with_gold_ones_as_a_plain_loop_does(data, trained, tmp_path, capsys):
    out, path = str(tmp_path / "out.json"), data.replace("/data", "/scenes/gold.json")
    words = f"-model {trained} -data {data} -part train -gold {path} -json {out} -batch_size 9"
    assert call(vqa_evaluate.main, *words.split()) == 0
    gold = json.load(open(path))
    model, prepared = checkpoint.Trained(trained, torch.device("cpu")).model, Data.load(data)
    part = prepared.part("train")
    labels = fixed_labels(part, LABEL_SEED)
    found = {}
    for i in range(len(part)):
        known = gold[str(part.entry(i)["question_id"])]
        box = known["boxes"].get(prepared.answers[labels[i]]) if labels[i] >= 0 else None
        if box is None:
            continue
        batch = part.batch([i])
        batch.gold = torch.tensor([labels[i]])
        with torch.no_grad():
            positions = model(batch)
            states = torch.tanh(
                model.attention.readout.query(positions.queries)
                + model.attention.readout.context(batch.features[0])
            )
            likelihood = torch.softmax(model.attention.words(states), 1)[:, labels[i]]
        prior = torch.softmax(positions.prior[0], 0)
        exact = prior * likelihood / (prior @ likelihood)
        posterior = torch.softmax(positions.posterior[0], 0)
        for name, probs in {"prior": prior, "posterior": posterior, "exact": exact}.items():
            sums = found.setdefault((known["kind"], name), [])
            sums.append((probs[box].item(), int(probs.argmax()) == box))
    result = json.load(open(out))["models"][0]["boxes"]
    assert list(result) == ["one", "either"]
    for (kind, name), seen in found.items():
        assert result[kind]["questions"] == len(seen) > 20
        mass, hit = 100 * np.mean(seen, axis=0)
        assert result[kind]["mass"][name] == pytest.approx(mass, abs=1e-3)
        assert result[kind]["hit"][name] == pytest.approx(hit)
    shown = f"{result['one']['mass']['prior']:.1f} / {result['one']['hit']['prior']:.1f}"
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "expected an object with question ids"),
        ('{"x": {"kind": "one", "boxes": {}}}', "'x' is not a question id"),
        ('{"1000": {"boxes": {}}}', "question 1000: expected an object with a text 'kind'"),
        ('{"1000": {"kind": "one", "boxes": {"red": true}}}', "question 1000: the box of 'red' must be"),
        ('{"1000": {"kind": "one", "boxes": {"no": 0}}}', "it has no box for any of the questions"),
    ],
)
def test_a_mistake_in_gold_boxes_is_one_sentence(data, trained, tmp_path, content, said, capsys):
    path = tmp_path / "gold.json"
    path.write_text(content)
    assert call(vqa_evaluate.main, *f"-model {trained} -data {data} -gold {path}".split()) == 2
    err = capsys.readouterr().err
    assert said in err
    assert str(path) in err
    assert len(err.strip().splitlines()) == 1


def test_a_gold_box_that_the_image_has_not_is_named(data, trained, tmp_path, capsys):
    gold = json.load(open(data.replace("/data", "/scenes/gold.json")))
    for known in gold.values():
        known["boxes"] = {answer: 16 for answer in known["boxes"]}
    (tmp_path / "gold.json").write_text(json.dumps(gold))
    assert call(vqa_evaluate.main, *f"-model {trained} -data {data} -gold {tmp_path}/gold.json".split()) == 2
    assert re.search(r"question \d+: there is no box 16; its image has 1\d", capsys.readouterr().err)


def test_a_run_keeps_the_defaults_it_began_with(data, tmp_path):
    """A run of version 0.1 had no warm-up, and gets none when it is resumed."""
    prefix = str(tmp_path / "m")
    assert train(data, prefix, run="-train_steps 2") == 0
    words = f"-data {data} -save_model {prefix} {SIZES} {SAMPLED} -train_steps 4 -resume"
    assert call(vqa_train.main, *words.split()) == 0
    assert checkpoint.load(f"{prefix}_step_4.pt")["opt"]["attention_warmup_steps"] == 0


def test_validations_of_a_warm_up_are_marked_and_compared_with_each_other_alone(data, tmp_path):
    prefix = str(tmp_path / "m")
    flags = f"{SAMPLED} -attention_warmup_steps 4 -report_every 3 -valid_steps 2 -decay_on_plateau 1"
    assert train(data, prefix, flags, run="-train_steps 8 -learning_rate 0.01") == 0
    lines = metrics(prefix)
    assert [line["step"] for line in lines if line.get("warm_up")] == [2, 3, 4, 4]
    assert all("soft_ppl" in line for line in lines if line["part"] == "valid")
    assert checkpoint.load(f"{prefix}_step_8.pt")["training"]["best"]["step"] > 4


def test_resuming_another_run_is_refused(data, tmp_path, capsys):
    prefix = str(tmp_path / "m")
    assert train(data, prefix, run="-train_steps 2") == 0
    assert f"no validation, and no {prefix}_best.pt" in capsys.readouterr().err
    assert train(data, prefix, f"{SAMPLED} -resume", run="-train_steps 3 -rnn_size 14 -seed 2") == 2
    said = capsys.readouterr().err
    assert "-rnn_size 14" in said
    assert "-rnn_size 12" in said
    assert "-seed 2" in said
    assert len([line for line in said.strip().splitlines() if "INFO" not in line]) == 1


def test_early_stopping_and_the_best_checkpoint(data, tmp_path):
    prefix = str(tmp_path / "m")
    run = "-train_steps 60 -valid_steps 2 -early_stopping 2 -learning_rate 0.5 -save_checkpoint_steps 0 -dropout 0"
    assert train(data, prefix, "-attention soft", run) == 0
    valid = {line["step"]: line["nll"] for line in metrics(prefix) if line["part"] == "valid"}
    last, best = max(valid), min(valid, key=valid.get)
    assert last < 60
    assert last == best + 4
    assert os.readlink(f"{prefix}_best.pt") == f"m_step_{best}.pt"
    assert sorted(saving.checkpoints_of(prefix)) == sorted({best, last})


def test_word_vectors_are_where_training_starts(data, tmp_path):
    words = Data.load(data).words
    known = words.words[3]
    (tmp_path / "glove.txt").write_text(f"{known} {' '.join(['0.25'] * 8)}\n")
    prefix = str(tmp_path / "m")
    assert (
        train(
            data,
            prefix,
            f"-attention soft -embeddings {tmp_path}/glove.txt",
            "-train_steps 1 -learning_rate 0",
        )
        == 0
    )
    assert (
        checkpoint.load(f"{prefix}_step_1.pt")["model"]["embeddings.weight"][words.index(known)].tolist()
        == [0.25] * 8
    )


def test_curves_for_tensorboard(data, tmp_path):
    run = f"-train_steps 4 -valid_steps 2 -report_every 2 -tensorboard -tensorboard_log_dir {tmp_path}/curves"
    assert train(data, str(tmp_path / "m"), run=run) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "curves"))
    events.Reload()
    assert {"progress/nll", "valid/nll", "valid/accuracy", "valid/kl"} <= set(events.Tags()["scalars"])
    written = [line["nll"] for line in metrics(str(tmp_path / "m")) if line["part"] == "valid"]
    assert [event.value for event in events.Scalars("valid/nll")] == pytest.approx(written, rel=1e-6)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-attention variatonal", "invalid choice: 'variatonal'"),
        ("-atention soft", "did you mean -attention?"),
        ("-attention relaxed", "invalid choice: 'relaxed'"),
        ("-attention hard -attention_warmup_steps auto", "give a number of steps"),
        (
            "-attention soft -attention_estimator enum",
            "-attention_estimator enum does not go with -attention soft",
        ),
        ("-attention hard -posterior svi", "-posterior does not go with -attention hard"),
        (
            "-attention variational -posterior svi -attention_estimator sample",
            "-posterior svi does not go with",
        ),
        ("-rnn_size 0", "-rnn_size 0 must be at least 1"),
        ("-dropout 1", "-dropout 1.0 must be at least 0 and below 1"),
        ("-gpu_ranks 0 1", "-world_size is 1; give one GPU"),
        ("-world_size 2 -data nowhere/d", "nowhere/d.json: cannot be read"),
        ("-gpu_ranks 0", "torch finds no CUDA device"),
        ("-data nowhere/d", "nowhere/d.json: cannot be read"),
        ("-embeddings nowhere.txt", "-embeddings nowhere.txt: cannot be read"),
        ("-save_model /proc/none/m", "cannot be written"),
        ("-global_attention dot", "-global_attention dot"),
        ("-learning_rate nan", "is not a finite number"),
    ],
)
def test_a_mistake_is_one_sentence(data, tmp_path, flags, said, capsys):
    assert train(data, str(tmp_path / "m"), flags, run="-train_steps 1") == 2
    err = capsys.readouterr().err
    assert said in err
    assert len([line for line in err.strip().splitlines() if "INFO" not in line]) == 1
    assert not list(tmp_path.glob("*.pt"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "give -data to evaluate, or -image_features and -question to ask"),
        ("-data D -question what", "-data does not go with -question"),
        ("-question what", "-image_features is needed too"),
        ("-image_features F", "-question is needed too"),
        ("-image_features F -question what -image_id 77", "it has no image 77"),
        ("-image_features F -question what", "it has several images; choose one with -image_id"),
        ("-image_features F -image_id 1 -question ???", "it contains no word"),
        ("-image_features F -image_id 1 -question=", "it contains no word"),
        ("-data D -kmax -1", "-kmax -1 must not be negative"),
        ("-data D -batch_size 0", "-batch_size 0 must be at least 1"),
        ("-data D -image x.png", "-image does not go with -data"),
        ("-data nowhere", "nowhere.json: cannot be read"),
        ("-image_features F -question what -gold g.json", "-gold does not go with -question"),
        ("-data D -gold nowhere.json", "nowhere.json: cannot be read"),
        ("-data D -gpu 0", "torch finds no CUDA device"),
        ("-data D -json /proc/none/x", "cannot be written"),
    ],
)
def test_a_mistake_in_scoring_or_asking_is_one_sentence(data, trained, flags, said, capsys):
    features = data.replace("/data", "/scenes/trainval.tsv")
    words = [{"D": data, "F": features}.get(word, word) for word in flags.split()]
    assert call(vqa_evaluate.main, "-model", trained, *words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_models_of_other_kinds_and_data_are_refused(data, trained, tmp_path, capsys):
    torch.save({"model": {}, "generator": {}}, tmp_path / "other.pt")
    assert call(vqa_evaluate.main, *f"-model {tmp_path}/other.pt -data {data}".split()) == 2
    assert "not a visual question answering model: it has no 'vqa'" in capsys.readouterr().err
    other = prepare(tmp_path, train_images=30, seed=9)
    capsys.readouterr()
    assert call(vqa_evaluate.main, *f"-model {trained} -data {other}".split()) == 2
    assert (
        "its words, answers, number of boxes, training and validation questions differ from those"
        in capsys.readouterr().err
    )


def resplit(data, directory):
    """The same questions, others of them for validation and test."""
    scenes = data.replace("/data", "/scenes")
    settings = json.load(open(f"{data}.json"))["options"]
    names = ("train_questions", "train_annotations", "valid_questions", "valid_annotations")
    words = [word for name in names for word in (f"-{name}", settings[name])]
    words += ["-image_features", f"{scenes}/trainval.tsv", "-save_data", f"{directory}/other"]
    assert call(vqa_preprocess.main, *words, "-answer_min_frequency", 2, "-split_seed", 2) == 0
    return f"{directory}/other"


def test_questions_that_a_model_was_chosen_by_are_not_scored_as_others(data, trained, tmp_path, capsys):
    other = resplit(data, tmp_path)
    assert call(vqa_evaluate.main, *f"-model {trained} -data {other}".split()) == 2
    assert "its training and validation questions differ from those of -data" in capsys.readouterr().err
    prefix = str(tmp_path / "m")
    assert train(data, prefix, run="-train_steps 2") == 0
    assert train(other, prefix, f"{SAMPLED} -resume", run="-train_steps 3") == 2
    assert "not the training and validation questions that the run began with" in capsys.readouterr().err


def test_features_of_the_same_size_are_not_taken_for_others(data, tmp_path, capsys):
    prefix, own = str(tmp_path / "m"), str(tmp_path / "data")
    for path in glob.glob(f"{data}.*"):
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, path.replace(data, own))
    assert train(own, prefix, run="-train_steps 2") == 0
    assert train(data, prefix, f"{SAMPLED} -resume", run="-train_steps 3") == 0
    with open(f"{own}.features/features.bin", "r+b") as file:
        file.write(b"\0\0\0\0")
    assert train(own, prefix, f"{SAMPLED} -resume", run="-train_steps 4") == 2
    assert f"-data {own}: not the features that the run began with" in capsys.readouterr().err
    arrays = dict(np.load(f"{data}.train.npz"))
    arrays["votes"][0] += 1
    np.savez(f"{own}.train.npz", **arrays)
    assert train(own, prefix, f"{SAMPLED} -resume", run="-train_steps 4") == 2
    assert f"-data {own}: not the training questions that the run began with" in capsys.readouterr().err


def test_the_run_that_began_last_is_resumed_whatever_the_clock_said(data, tmp_path, capsys):
    prefix = str(tmp_path / "m")
    assert train(data, prefix, run="-train_steps 9") == 0
    found = checkpoint.load(f"{prefix}_step_9.pt")
    found["training"]["began"] = 4e9  # as version 0.1 wrote it, with a clock that was far ahead
    saving.write(found, f"{prefix}_step_9.pt")
    shutil.copy(f"{prefix}_step_9.pt", tmp_path / "kept")
    assert train(data, prefix, f"{SAMPLED} -overwrite", run="-train_steps 3") == 0
    shutil.copy(tmp_path / "kept", f"{prefix}_step_9.pt")
    assert train(data, prefix, f"{SAMPLED} -resume", run="-train_steps 4") == 0
    assert f"-resume: going on from {prefix}_step_3.pt" in capsys.readouterr().err


def test_scores_that_cannot_be_written_are_saved_elsewhere(data, trained, tmp_path, monkeypatch, capsys):
    words = f"-model {trained} -data {data} -part valid".split()
    assert call(vqa_evaluate.main, *words, "-json", tmp_path / "good") == 0
    printed = capsys.readouterr().out
    replace = os.replace

    def fail(temporary, path):
        if str(path) == f"{tmp_path}/lost":
            raise OSError(28, "No space left on device")
        replace(temporary, path)

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        assert call(vqa_evaluate.main, *words, "-json", tmp_path / "lost") == 1
    shown = capsys.readouterr()
    assert shown.out == printed
    place = shown.err.splitlines()[-1].split("is saved in ")[1]
    assert json.load(open(place)) == json.load(open(tmp_path / "good"))


def test_a_run_that_moved_goes_on(data, tmp_path):
    (tmp_path / "here").mkdir()
    assert train(data, f"{tmp_path}/here/m", run="-train_steps 2") == 0
    (tmp_path / "here").rename(tmp_path / "there")
    assert train(data, f"{tmp_path}/there/m", f"{SAMPLED} -resume", run="-train_steps 3") == 0
    assert os.path.exists(f"{tmp_path}/there/m_step_3.pt")


@pytest.mark.parametrize(("flags", "said"), [("-draw x.foo", "x.foo: the ending tells"), ("-image I", "I")])
def test_a_picture_that_cannot_be_drawn_is_told_before_the_answers(
    data, trained, tmp_path, monkeypatch, capsys, flags, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "I").write_text("no image")
    words = ["-image_features", data.replace("/data", "/scenes/trainval.tsv"), "-image_id", "1"]
    assert call(vqa_evaluate.main, "-model", trained, *words, "-question", "what is it", *flags.split()) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""


def test_data_named_by_its_file_is_told(data, tmp_path, capsys):
    assert train(f"{data}.json", str(tmp_path / "m")) == 2
    assert f"-data {data}.json: omit .json" in capsys.readouterr().err


def test_a_run_is_not_resumed_with_features_of_another_size(data, tmp_path, capsys):
    prefix = str(tmp_path / "m")
    assert train(data, prefix, run="-train_steps 2") == 0
    other = prepare(tmp_path, feature_size=33)
    assert train(other, prefix, f"{SAMPLED} -resume", run="-train_steps 3") == 2
    assert "not the feature size that the run began with" in capsys.readouterr().err


def test_questions_whose_answers_are_all_unknown(data, trained, tmp_path, monkeypatch, capsys):
    """Nothing to validate by is refused; in scoring such questions count for accuracy alone."""
    stock = Data.part

    def unlabelled(self, name):
        part = stock(self, name)
        if name != "train":
            empty = dataclasses.replace(
                part.columns,
                labels=part.columns.labels[:0],
                votes=part.columns.votes[:0],
                label_starts=part.columns.label_starts * 0,
            )
            part = Part(empty, part._file, self.store)
        return part

    monkeypatch.setattr(Data, "part", unlabelled)
    assert train(data, str(tmp_path / "m"), run="-train_steps 2") == 2
    assert "no validation question has an answer of the vocabulary" in capsys.readouterr().err
    out = str(tmp_path / "out.json")
    assert call(vqa_evaluate.main, *f"-model {trained} -data {data} -json {out}".split()) == 0
    result = json.load(open(out))["models"][0]
    assert result["nll"]["exact"] is result["prior_entropy"] is None
    assert result["labelled"] == 0
    assert result["accuracy"]["exact"] >= 0


def test_a_device_that_is_not_there_is_refused(data, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert train(data, str(tmp_path / "m"), "-attention soft -gpu_ranks 1") == 2
    assert "-gpu_ranks 1: torch finds 1 CUDA device(s), counted from 0" in capsys.readouterr().err
    assert train(data, str(tmp_path / "m"), "-attention soft -gpu_ranks -1") == 2
    assert call(vqa_evaluate.main, *f"-model {trained} -data {data} -gpu 3".split()) == 2
    assert "-gpu 3: torch finds 1 CUDA device(s)" in capsys.readouterr().err


def test_asking_about_an_image_decodes_no_other(data, trained, tmp_path, capsys):
    lines = open(data.replace("/data", "/scenes/trainval.tsv"), "rb").read().splitlines(keepends=True)
    first = lines[0].split(b"\t")
    lines[0] = b"\t".join([*first[:5], b"!!!\n"])
    (tmp_path / "a.tsv").write_bytes(b"".join(lines))
    words = ["-model", trained, "-image_features", tmp_path / "a.tsv", "-question", "what is it", "-image_id"]
    assert call(vqa_evaluate.main, *words, 2) == 0
    assert "Image 2, " in capsys.readouterr().out
    assert call(vqa_evaluate.main, *words, 1) == 2
    assert "line 1: features are not base64" in capsys.readouterr().err


def test_asking_gives_the_answers_that_scoring_gives(data, trained, tmp_path, capsys):
    prepared = Data.load(data)
    part = prepared.part("train")
    i = next(i for i in range(len(part)) if part.entry(i)["image_id"] == 1)
    question, features = part.entry(i)["question"], data.replace("/data", "/scenes/trainval.tsv")
    out, drawn = str(tmp_path / "out.json"), str(tmp_path / "boxes.png")
    image = data.replace("/data", "/scenes/images/COCO_train2014_000000000001.png")
    words = f"-model {trained} -image-features {features} -image_id 1 -json {out} -image {image} -draw {drawn} -top 3"
    assert call(vqa_evaluate.main, *words.split(), "-question", question) == 0
    said = capsys.readouterr().out
    found = json.load(open(out))
    loaded = checkpoint.Trained(trained, torch.device("cpu"))
    batch = part.batch([i])
    model = loaded.model
    with torch.no_grad():
        positions = model(batch)
        prior = torch.softmax(positions.prior[0], 0)
        states = torch.tanh(
            model.attention.readout.query(positions.queries)
            + model.attention.readout.context(batch.features[0])
        )
        probs = torch.softmax(model.attention.words(states), 1)
    best = (prior @ probs).topk(3)
    assert found["prior"] == pytest.approx(prior.tolist(), abs=1e-5)
    for answer, index, probability in zip(
        found["answers"], best.indices.tolist(), best.values.tolist(), strict=True
    ):
        assert answer["answer"] == prepared.answers[index]
        assert answer["probability"] == pytest.approx(probability, abs=1e-5)
        joint = prior * probs[:, index]
        assert answer["exact_posterior"] == pytest.approx((joint / joint.sum()).tolist(), abs=1e-5)
        batch.gold = torch.tensor([index])
        with torch.no_grad():
            q = torch.softmax(model(batch).posterior[0], 0)
        assert answer["posterior"] == pytest.approx(q.tolist(), abs=1e-5)
        assert f"{100 * probability:6.2f} %  {prepared.answers[index]}" in said
    assert open(drawn, "rb").read(8) == b"\x89PNG\r\n\x1a\n"
    assert f"drawn: {drawn}" in said


def test_features_of_another_size_are_refused(trained, tmp_path, capsys):
    np.savez(tmp_path / "7.npz", features=np.ones((3, 5), np.float32), boxes=np.ones((3, 4), np.float32))
    words = ["-model", trained, "-image_features", str(tmp_path), "-question", "what color is it"]
    assert call(vqa_evaluate.main, *words) == 2
    assert "image 7: features of size 5, but" in capsys.readouterr().err
