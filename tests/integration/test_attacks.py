"""Crafted checkpoints at every entry point: no code, no write, no read elsewhere, one sentence.

All cases at all entry points take minutes and are slow; the rest takes one case of each kind, at its load
functions, in translation, and at one more entry point in turn. `python -m tests.fuzz` goes on from there.
"""

import contextlib
import json
import random
import time
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.model import checkpoint
from onmt_varattn.nmt.plugin import register
from onmt_varattn.vqa import checkpoint as vqa_checkpoint
from tests.attacks import conversion, exploit, harness, mutators, pickles, strict, tensors_file
from tests.attacks.archives import Archive
from tests.attacks.arena import Arena
from tests.attacks.cases import REFUSED, SAFE, SAME, Goods, MissingError, corpus, one_of_each
from tests.attacks.entry_points import UNSAFE, available, for_kind
from tests.attacks.harness import Job, judge
from tests.attacks.inert import strangers
from tests.attacks.tensors_file import TensorsFile
from tests.attacks.world import FILES, OLD
from tests.conftest import call

GROUPS = ("pickle", "zip", "tensor", "format", "content")


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    return Arena(tmp_path_factory.mktemp("arena"))


def check(arena, cases, every_point):
    """Try all in one go, and fail with what was found; a process for each group would take as long to start."""
    jobs, missing = arena.jobs(cases, every_point)
    groups = {case.name: case.group for case in cases}
    findings = [finding for tried in arena.run(jobs) for finding in tried.findings]
    counts = dict(Counter(f"{groups[finding.job.case]}: {finding.kind}" for finding in findings))
    lines = "\n".join(map(str, findings[:500]))
    assert not counts, f"{len(findings)} findings in {len(jobs)} trials:\n{lines}"
    reasons = Counter(missing.values())
    if any("training writes" in reason for reason in reasons):
        pytest.skip(f"{len(jobs)} trials found nothing, but some cases could not be made: {dict(reasons)}")


def test_crafted_files_are_refused(arena):
    check(arena, one_of_each(corpus()), every_point=False)


@pytest.mark.slow
def test_all_crafted_files_are_refused_everywhere(arena):
    check(arena, corpus(), every_point=True)


def test_good_files_are_accepted_everywhere(arena):
    """Or nothing would be shown by refusals."""
    jobs = [
        Job(f"good {kind}", path, point, REFUSED if _is_foreign(kind, point) else SAFE)
        for files in (arena.goods.old, arena.goods.new)
        for kind, path in files.items()
        for point in for_kind("vqa" if kind == "vqa" else "translation")
    ]
    tried = list(arena.run(jobs))
    assert [finding for one in tried for finding in one.findings] == []
    refused = {(one.job.case, one.job.point) for one in tried if one.refused and one.job.expected == SAFE}
    assert refused == {
        ("good stock", "evaluate"),  # which is for -attention
        ("good stock", "explore"),
        ("good translation", "release -format opennmt"),  # which is not
    }
    assert {one.job.point for one in tried} == set(available())


def _is_foreign(kind, point):
    return point == ("load" if kind == "vqa" else "vqa load")


def test_the_corpus_is_as_large_as_promised():
    groups = Counter(case.group for case in corpus())
    assert set(groups) == set(GROUPS)
    assert min(groups.values()) >= 50
    assert len(one_of_each(corpus())) >= 400


def test_weights_that_are_not_finite_translate_only_if_asked_to(arena, tmp_path):
    from onmt_varattn.bin.nmt import translate
    from onmt_varattn.nmt.parsers import translate_parser

    names = {action.dest for action in translate_parser()._actions}
    if "allow_nonfinite" not in names:
        pytest.skip("onmt_translate has no -allow_nonfinite yet")
    case = next(case for case in corpus() if case.name == "content: a parameter is NaN (translation, old)")
    words = ["-model", arena.make(case), "-src", arena.world / "test.src", "-output", tmp_path / "output"]
    assert call(translate.main, *words) == 2
    assert not (tmp_path / "output").exists()
    assert call(translate.main, *words, "-allow_nonfinite") == 0
    assert len((tmp_path / "output").read_text("utf-8").splitlines()) == 1


# The harness notices attacks: a loader that trusts pickles fails in all ways.
def test_the_harness_notices_what_a_trusting_loader_lets_happen(arena):
    expected = {
        "pickle: calls os.system": {"run", "witness"},
        "pickle: calls subprocess.call": {"run", "witness"},
        "pickle: calls subprocess.Popen": {"run", "witness"},  # which nothing waits for
        "pickle: calls builtins.exec": {"run", "write", "witness"},
        "pickle: calls os.mkdir": {"write", "witness"},
        "pickle: calls builtins.open": {"write", "witness"},
        "pickle: calls socket.create_connection": {"network", "traceback"},
        "pickle: calls importlib.import_module": {"import"},
        "pickle: calls numpy.load": {"read"},
        "pickle: bytearray of a gigabyte": {"memory"},
        "pickle: no STOP": {"traceback"},
    }
    by_name = {case.name: case for case in corpus()}
    jobs = [Job(name, arena.make(by_name[name]), UNSAFE) for name in expected]
    for tried in arena.run(jobs):
        kinds = {finding.kind for finding in tried.findings} - {"accepted"}
        assert expected[tried.job.case] <= kinds, tried.job.case
        assert ("witness" in kinds) == ("witness" in expected[tried.job.case]), tried.job.case
        time.sleep(0.2)  # however slowly findings are read, no trace is taken for another file's


def test_the_harness_notices_time_and_death(arena, tmp_path, monkeypatch):
    dies = pickles.write(pickles.Call(pickles.Global("os", "abort")))
    sleeps = pickles.write(pickles.Call(pickles.Global("time", "sleep"), (100,)))
    jobs = []
    for name, code in (("dies", dies), ("sleeps", sleeps), ("is fine", b"\x80\x02N.")):
        arena.goods.archive().write(tmp_path / f"{name}.pt", code)
        jobs.append(Job(name, tmp_path / f"{name}.pt", UNSAFE, SAFE))
    monkeypatch.setenv("ATTACK_SECONDS", "2")
    found = {tried.job.case: {finding.kind for finding in tried.findings} for tried in arena.run(jobs)}
    assert found["dies"] == {"died"}
    assert "time" in found["sleeps"]
    assert found["is fine"] <= {"lookup"}  # torch's trusting reader looks names up


GOOD_OUTCOME = {
    "code": 2, "stderr": "translate: error: /x/m.pt: is broken\n", "trace": "", "result": None, "events": [],
    "seconds": 0.1, "memory": 0, "size": 10, "program": "translate", "left": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, None),
        ({"code": 0}, "accepted"),
        ({"code": 1}, "accepted"),
        ({"stderr": ""}, "sentence"),
        ({"stderr": "translate: error: broken\n"}, "sentence"),
        ({"stderr": "translate: error: /x/m.pt: is\ntranslate: broken\n"}, "sentence"),
        ({"stderr": "Traceback (most recent call last):\ntranslate: error: /x/m.pt: is broken"}, "traceback"),
        ({"trace": "Traceback\nKeyError: 'model'"}, "traceback"),
        ({"memory": 1 << 30}, "memory"),
        ({"left": ["output"]}, "left"),
        ({"events": [("read", "/etc/passwd")]}, "read"),
        ({"result": {"strangers": ["a function"]}}, "callable"),
    ],
)
def test_an_outcome_is_judged(tmp_path, changes, kind):
    from pathlib import Path

    found = [
        found for found, _ in judge(Job("case", Path("/x/m.pt"), "translate"), {**GOOD_OUTCOME, **changes})
    ]
    assert kind in found if kind else found == []


# The chain that worked is kept live: with the loader of version 0.1 it runs its command.
def test_the_chain_runs_its_command_with_the_loader_of_version_0_1(arena, tmp_path):
    import argparse
    import functools

    import onmt.inputters.inputter
    import onmt.inputters.text_dataset
    import torchtext.data.field
    import torchtext.data.utils
    import torchtext.vocab

    allowed = [
        argparse.Namespace, functools.partial, torchtext.data.field.Field, torchtext.vocab.Vocab,
        torchtext.data.utils._split_tokenizer, onmt.inputters.text_dataset.TextMultiField,
        onmt.inputters.text_dataset._feature_tokenize,
    ]  # fmt: skip
    archive = arena.goods.archive()
    exploit.arm(archive, exploit.touch(tmp_path / "ran"))
    archive.write(tmp_path / "evil.pt")
    before = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals(allowed):
        field = torch.load(tmp_path / "evil.pt", weights_only=True)["vocab"]["src"]
    torch.serialization.add_safe_globals(before)  # torch forgets these, too
    assert not (tmp_path / "ran").exists()
    with pytest.raises(AttributeError):  # when the command has run
        field.process([field.preprocess({"src": "ein Haus"})])
    assert (tmp_path / "ran").exists()


# Property-based: what is changed at random is refused, or gives data and nothing else.
@pytest.fixture(scope="module")
def place(tmp_path_factory):
    register()
    return tmp_path_factory.mktemp("mutated") / "m.pt"


LOADERS = {"translation": checkpoint.load, "stock": checkpoint.load, "vqa": vqa_checkpoint.load}
examples = settings(max_examples=80, derandomize=True, deadline=None)


def check_loaded(path, kind, content):
    """A file gives data, or one sentence."""
    path.write_bytes(content)
    found, message = {}, f"{path}: "
    try:
        found = LOADERS[kind](str(path))
        if tensors_file.is_tensors_file(path):
            strict.read(content, kind)
    except UserError as error:
        message = str(error)
    assert strangers(found) == []
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def check_changed(path, kind, good, mutator):
    """So does a good file with any change that a mutator makes."""

    @examples
    @given(st.integers(0, 1 << 32))
    def holds(seed):
        check_loaded(path, kind, mutator(good, random.Random(seed)))

    holds()


@pytest.mark.parametrize("kind", list(OLD))
@pytest.mark.parametrize("mutator", [mutators.change_bytes, mutators.change_opcodes, mutators.change_entries])
def test_an_old_file_with_random_changes_gives_data_or_is_refused(place, kind, mutator):
    check_changed(place, kind, (FILES / OLD[kind]).read_bytes(), mutator)


@pytest.mark.parametrize("kind", ["translation", "vqa"])
@pytest.mark.parametrize("mutator", [mutators.change_header, mutators.change_document, mutators.change_data])
def test_a_new_file_with_random_changes_gives_data_or_is_refused(arena, place, kind, mutator):
    check_changed(place, kind, _new(arena, kind).bytes(), mutator)


@pytest.mark.parametrize("kind", ["translation", "vqa"])
def test_any_other_bytes_of_a_new_file_are_noticed(arena, place, kind):
    good = arena.goods.new[kind].read_bytes() if kind in arena.goods.new else _new(arena, kind).bytes()

    @examples
    @given(st.integers(0, 1 << 32))
    def holds(seed):
        changed = mutators.change_bytes(good, random.Random(seed))
        if changed != good:
            place.write_bytes(changed)
            with pytest.raises(UserError):
                LOADERS[kind](str(place))

    holds()


def _new(arena, kind):
    try:
        return arena.goods.tensors_file(kind)
    except MissingError as error:
        pytest.skip(str(error))


# The tools of the attacks themselves.
@pytest.mark.parametrize("kind", list(OLD))
def test_an_archive_is_written_as_it_was_read(arena, tmp_path, kind):
    register()
    archive = arena.goods.archive(kind)
    archive.write(tmp_path / "again.pt")
    before, after = (LOADERS[kind](str(path)) for path in (arena.goods.old[kind], tmp_path / "again.pt"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before["model"][name], after["model"][name]) for name in before["model"])
    name, record = next(iter(archive.tensors().items()))
    assert torch.equal(archive.value(record), before["model"][name])
    assert torch.equal(archive.value(archive.tensor(before["model"][name])), before["model"][name])


@pytest.fixture
def written(tmp_path):
    """A file in the new format, written here."""
    file = TensorsFile()
    file.tree = {"model": {"a.weight": file.tensor(torch.arange(6.0).reshape(2, 3))}, "opt": {"layers": 1}}
    file.tree["optim"] = {"$pairs": [[0, {"$tuple": [1, {"$float": "nan"}]}]]}
    file.write(tmp_path / "new.pt")
    return tmp_path / "new.pt"


def test_a_tensors_file_is_read_as_it_was_written(written):
    import zlib

    content = written.read_bytes()
    assert content[8:34] == tensors_file.START
    assert int(content[34:42], 16) == zlib.crc32(content[:34] + b"0" * 8 + content[42:])
    assert int.from_bytes(content[:8], "little") % 8 == 0
    file = TensorsFile(written)
    assert file.bytes() == content
    assert torch.equal(file.value(file.tensors()["a.weight"]), torch.arange(6.0).reshape(2, 3))


def test_a_tensors_file_is_one_that_safetensors_reads(written):
    safetensors = pytest.importorskip("safetensors.torch")
    found = safetensors.load_file(written)
    assert torch.equal(found["new.0"], torch.arange(6.0).reshape(2, 3))
    assert json.loads(bytes(found["document"].tolist()))["opt"] == {"layers": 1}


@pytest.mark.parametrize("mutator", mutators.NEW)
def test_mutators_of_the_new_format_change_one_thing(written, mutator):
    good = written.read_bytes()
    results = {mutator(good, random.Random(seed)) for seed in range(50)}
    assert len(results) > 20
    if mutator is mutators.change_document:  # what it writes is whole, but for its content
        for content in results - {good}:
            written.write_bytes(content)
            assert tensors_file.with_crc(content) == content
            TensorsFile(written)


@pytest.mark.parametrize("mutator", mutators.OLD)
def test_mutators_of_the_old_format_change_one_thing(mutator):
    good = (FILES / OLD["vqa"]).read_bytes()
    assert len({mutator(good, random.Random(seed)) for seed in range(20)}) > 10


def test_cases_of_the_new_format_change_the_file(arena, tmp_path):
    """Made from files that are converted here, whether or not training writes such files yet."""
    new = {}
    for kind in ("translation", "vqa"):
        new[kind] = tmp_path / f"{kind}.pt"
        conversion.convert(arena.goods.archive(kind)).write(new[kind])
    goods = Goods(arena.goods.old, new, tmp_path)
    cases = [case for case in corpus() if case.group == "format" or case.name.endswith(", new)")]
    assert len(cases) > 500
    unchanged, valid = [], []
    for case in cases:
        case.make(goods, tmp_path / "made.pt")
        content = (tmp_path / "made.pt").read_bytes()
        if content == new[case.kind].read_bytes():
            unchanged.append(case)
        with contextlib.suppress(strict.BrokenRuleError):
            strict.read(content, case.kind)
            valid.append(case)
    # A reader that keeps to the rules refuses what must be refused everywhere: so can the project's.
    assert [case.name for case in valid if case.expected == REFUSED and not case.at] == []
    assert len(valid) > 200  # those that only a look at the content tells
    assert [case.name for case in unchanged if case.expected == REFUSED] == []
    assert len(unchanged) < 12


def test_strangers_are_found():
    import functools
    import os

    inert = {"model": {"w": torch.ones(2)}, "opt": [1, ("a", None, 2.5)]}
    assert strangers(inert) == []
    for value in (
        os.system,
        os,
        functools.partial(os.system, "true"),
        int,
        object(),
        lambda: 0,
        {os.system: 1},
    ):
        assert strangers({**inert, "x": [value]}), value


def test_results_are_compared_where_they_must_be_the_same(arena):
    job = Job("case", arena.goods.old["translation"], "translate", SAME)
    outcome = {**GOOD_OUTCOME, "code": 0, "stderr": "", "result": "another translation\n"}
    assert [kind for kind, _ in judge(job, outcome, arena.good)] == ["different"]
    assert list(judge(job, {**outcome, "result": arena.good(job)}, arena.good)) == []
    assert harness.MEMORY < 1 << 30
    assert isinstance(arena.goods.archive(), Archive)
