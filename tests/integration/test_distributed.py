"""Distributed training: many processes compute what one would, and go down and come back together."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from onmt_varattn.bin.nmt import train
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.plugin import register
from onmt_varattn.training.launch import free_port, launch
from tests.conftest import ROOT, SIZES, call, run_command

COMMON = "-optim sgd -learning_rate 0.2 -max_grad_norm 5 -dropout 0 -train_steps 20 -valid_steps 10 -report_every 4"
OBJECTIVES = {
    "soft": "-attention soft",
    "marginal": "-attention marginal -attention_warmup_steps 0",
    "hard": "-attention hard -attention_estimator enum -attention_warmup_steps 0",
    "variational": "-attention variational -attention_estimator enum -attention_warmup_steps 0",
    "adam": "-attention soft -optim adam -learning_rate 0.01 -accum_count 2",
    "words": "-attention soft -normalization tokens -batch_type tokens",
    "stock": "-global_attention mlp -rnn_size 32",
}
OF_BOTH = ("soft", "marginal", "hard", "variational", "adam")


@pytest.fixture(autouse=True)
def _registered():
    register()


def words(data, prefix, flags, batch_size, steps=COMMON):
    sizes = SIZES if "-rnn_size" not in flags else "-layers 1 -word_vec_size 24 -encoder_type brnn"
    return (
        f"-config {data}.yaml {sizes} {steps} -seed 5 -save_checkpoint_steps 10 {flags} "
        f"-batch_size {batch_size} -save_model {prefix}"
    ).split()


def two_ranks(tmp_path, runs):
    """Train runs one after the other in two processes; a run is a module, words and a fault."""
    (tmp_path / "runs.json").write_text(json.dumps([(*run, free_port()) for run in runs]))
    program = [sys.executable, "-m", "tests.ranks", "train", str(tmp_path)]
    return launch(program, [0, 1], 2, "localhost", free_port(), cuda=False)


def parameters(path):
    saved = checkpoint.load(str(path))
    return {**saved["model"], **{f"generator.{name}": value for name, value in saved["generator"].items()}}


def metrics(prefix):
    return [json.loads(line) for line in Path(f"{prefix}.metrics.jsonl").read_text().splitlines()]


def words_of(task, prefix, flags, batch_size, steps=COMMON):
    """The command line of a run of either task."""
    if task.name == "vqa":
        flags = flags.replace("-accum_count 2", "")
    run = f"{steps} -seed 5 -save_checkpoint_steps 10"
    return task.words(prefix, f"{flags} -batch_size {batch_size}", run)


def assert_same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], **tolerance, msg=lambda text, n=name: f"{n}: {text}"
        )


def size_of(name, share):
    return {"words": 200}.get(name, 8) * share


def test_two_processes_are_one_with_twice_the_batch(task, tmp_path):
    names = list(OBJECTIVES) if task.name == "translation" else OF_BOTH
    runs = {}
    for name in names:
        flags = OBJECTIVES[name]
        if task.name == "translation":
            one, two = (words_of_stock(task, tmp_path / f"{name}{n}", name, n) for n in (1, 2))
        else:
            one, two = (words_of(task, tmp_path / f"{name}{n}", flags, 16 // n) for n in (1, 2))
        assert call(task.main, *one) == 0
        runs[name] = (task.module, two, {})
    assert two_ranks(tmp_path, list(runs.values())) == 0
    for name in names:
        one, two = (task.parameters(tmp_path / f"{name}{size}_step_20.pt") for size in (1, 2))
        # Adam divides by the gradient's size, so that of parameters that hardly matter only noise is left.
        assert_same(one, two, rtol=1e-4, atol=2e-3 if name == "adam" else 2e-6)
        assert max((one[key] - value).abs().max() for key, value in start(one).items()) > 0.1
        if name == "stock":
            continue
        counted = {"translation": "words", "vqa": "questions"}[task.name]
        for a, b in zip(metrics(tmp_path / f"{name}1"), metrics(tmp_path / f"{name}2"), strict=True):
            assert a.keys() == b.keys()
            assert (a["part"], a["step"], a[counted]) == (b["part"], b["step"], b[counted])
            assert a["ppl"] == pytest.approx(b["ppl"], rel=1e-5)


def words_of_stock(task, prefix, name, processes):
    """The command line of a translation run, be it of OpenNMT's own model."""
    data = task.data.split(".yaml")[0].removeprefix("-config ")
    return words(data, prefix, OBJECTIVES[name], size_of(name, 2 // processes))


def start(parameters):
    """How far from zero parameters must have moved: OpenNMT starts within 0.1 of it."""
    return {name: value.clamp(-0.1, 0.1) for name, value in parameters.items()}


def test_faults_of_one_process_are_those_of_all(task, tmp_path, capfd):
    flags = "-attention soft -train_steps 6 -valid_steps 6"
    faults = {
        "loss": {"loss": [3]},
        "gradient": {"gradient": [3]},
        "halves": {"memory": {"3": 2}},
        "none": {},
        "left_out": {"memory": {"3": 0}},
    }
    runs = [
        (task.module, words_of(task, tmp_path / name, flags, 4), {**fault, "rank": 1})
        for name, fault in faults.items()
    ]
    assert two_ranks(tmp_path, runs) == 0
    said = capfd.readouterr().err
    assert said.count(f"Step 3 is left out: its loss is not finite. {task.named}") == 1
    assert said.count(f"Step 3 is left out: its gradient is not finite. {task.named}") == 1
    items = [
        line.rsplit(task.named, 1)[1].split(", ") for line in said.splitlines() if "Step 3 is left" in line
    ]
    assert [len(numbers) for numbers in items] == [4, 8]  # the share of rank 1; the whole batch
    assert set(items[0]) < set(items[1])
    assert f"Left out: 1 steps, 8 {task.items} in all." in said
    assert f"rank 1: Out of memory with 4 {task.items}" in said
    assert "tried again in halves" in said
    assert f"Left out: 0 steps, 4 {task.items} in all." in said
    found = {
        name: task.parameters(tmp_path / f"{name}_step_6.pt")
        for name in ("loss", "gradient", "halves", "none")
    }
    assert_same(found["loss"], found["gradient"], rtol=0, atol=0)
    assert_same(found["halves"], found["none"], rtol=1e-4, atol=1e-6)
    with pytest.raises(AssertionError):
        assert_same(found["loss"], found["none"], rtol=1e-4, atol=1e-5)


def test_all_processes_end_an_automatic_warm_up_at_the_same_step(data, tmp_path):
    """With a rate of 0 nothing gets better: the first of four validations is the best."""
    flags = "-attention variational -attention_estimator enum -learning_rate 0 -train_steps 12 -valid_steps 2"
    assert two_ranks(tmp_path, [(train.__name__, words(data, tmp_path / "m", flags, 4), {})]) == 0
    lines = metrics(tmp_path / "m")
    assert {line["step"]: bool(line.get("warm_up")) for line in lines if line["part"] == "valid"} == {
        **dict.fromkeys((2, 4, 6, 8), True),
        **dict.fromkeys((10, 12), False),
    }
    saved = checkpoint.load(str(tmp_path / "m_step_12.pt"))["training"]["start"]
    assert saved["end"] == 8
    alone = tmp_path / "alone"
    assert call(train.main, *words(data, alone, flags, 8)) == 0
    one = checkpoint.load(f"{alone}_step_12.pt")["training"]["start"]["curve"]
    assert saved["curve"]["blocks"] == pytest.approx(one["blocks"], rel=1e-5), "sums over both"


def test_a_validation_that_everybody_does_counts_once(data, tmp_path):
    """Each process draws samples of its own: were each to go by its own perplexity, they would part."""
    flags = "-attention relaxed -attention_warmup_steps 2 -learning_rate 0 -train_steps 12 -valid_steps 2"
    flags += " -valid_metrics BLEU -early_stopping 20 -decay_on_plateau 1"
    assert two_ranks(tmp_path, [(train.__name__, words(data, tmp_path / "m", flags, 4), {})]) == 0
    valid = [line for line in metrics(tmp_path / "m") if line["part"] == "valid"]
    assert [line["step"] for line in valid] == [2, 4, 6, 8, 10, 12]
    assert len({line["words"] for line in valid}) == 1
    assert len({line["ppl"] for line in valid}) > 1


LONG = "-attention variational -attention_estimator sample -attention_warmup_steps 0 -optim adam -learning_rate 0.01 -dropout 0.2"


def test_torchrun_and_two_machines_compute_the_same(data, tmp_path):
    steps = "-train_steps 6 -valid_steps 6 -report_every 3"
    program = [sys.executable, ROOT / "train.py"]
    own = words(data, tmp_path / "own", LONG, 4, steps)
    run_command(*program, *own, "-world_size", 2, "-gpu_backend", "gloo")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    port = free_port()
    run_command(
        *torchrun,
        "--master_port",
        port,
        ROOT / "train.py",
        *words(data, tmp_path / "torchrun", LONG, 4, steps),
    )
    port = free_port()
    nodes = words(data, tmp_path / "nodes", LONG, 4, steps)
    both = [
        subprocess.Popen(
            [str(w) for w in (*program, *nodes, "-world_size", 2, "-gpu_backend", "gloo", "-gpu_ranks", rank)]
            + ["-master_ip", "localhost", "-master_port", str(port)],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]
    assert [node.wait(200) for node in both] == [0, 0]
    expected = parameters(tmp_path / "own_step_6.pt")
    for name in ("torchrun", "nodes"):
        assert_same(expected, parameters(tmp_path / f"{name}_step_6.pt"), rtol=0, atol=0)


def test_killed_and_resumed_together_it_ends_as_if_nothing_had_happened(task, tmp_path):
    """A rank is killed, the launcher is told to stop, and the third start finishes."""
    steps = "-train_steps 60 -valid_steps 20 -report_every 7 -keep_checkpoint 3"

    def start(prefix, *more):
        command = [sys.executable, "-m", task.module, *words_of(task, prefix, LONG, 4, steps)]
        command += [*task.two.split(), "-save_checkpoint_steps", 5, *more]
        return subprocess.Popen([str(w) for w in command], cwd=ROOT, stderr=subprocess.PIPE, text=True)

    whole = start(tmp_path / "whole")
    run = start(tmp_path / "run")
    _wait_for(tmp_path, "run_step_5.pt")
    child = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True).stdout.split()[1]
    begun = time.monotonic()
    subprocess.run(["kill", "-KILL", child], check=True)
    said = run.communicate(timeout=60)[1]
    assert run.returncode not in (0, None)
    assert time.monotonic() - begun < 60
    assert "was killed by SIGKILL (by the system, if memory ran out); the others are stopped" in said
    newest = max(int(path.stem.split("_")[-1]) for path in tmp_path.glob("run_step_*.pt"))
    task.load(f"{tmp_path}/run_step_{newest}.pt")

    run = start(tmp_path / "run", "-resume")
    _wait_for(tmp_path, f"run_step_{newest // 5 * 5 + 5}.pt")
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=60)[1]
    if run.returncode:  # it may have been quicker
        assert run.returncode == 143, said
        assert "SIGTERM: stopped after step" in said
        assert "-resume goes on" in said
    run = start(tmp_path / "run", "-resume")
    assert run.wait(200) == 0
    assert whole.wait(200) == 0
    task.assert_same_run(tmp_path / "whole", tmp_path / "run", 60)


def _wait_for(directory, name, seconds=120):
    deadline = time.monotonic() + seconds
    while not (directory / name).exists():
        assert time.monotonic() < deadline, sorted(path.name for path in directory.iterdir())
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-world_size 2", "-world_size 2 needs -gpu_ranks; on the CPU use -gpu_backend gloo"),
        ("-world_size 2 -gpu_backend gloo -gpu_ranks 0 2", "must be different numbers from 0 to 1"),
        ("-world_size 2 -gpu_backend gloo -optim sparseadam", "-optim sparseadam does not go with several"),
        ("-world_size 0", "-world_size 0 must be at least 1"),
    ],
)
def test_runs_that_cannot_start_are_refused(data, tmp_path, capsys, flags, message):
    if torch.cuda.is_available():
        pytest.skip("what is refused depends on there being no GPU")
    assert call(train.main, *words(data, tmp_path / "m", f"-attention soft {flags}", 4)) == 2
    assert message in capsys.readouterr().err
