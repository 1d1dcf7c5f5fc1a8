"""The parts of the server that need no model: options of clients, access, cost, turns."""

import argparse
import gc
import threading
import time
import weakref

import pytest
from werkzeug.datastructures import Headers

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.parsers import translate_parser
from onmt_varattn.nmt.serving.access import Access, read_token
from onmt_varattn.nmt.serving.config import Limits
from onmt_varattn.nmt.serving.options import CLIENT_OPTIONS, OTHER_NAMES, read_options
from onmt_varattn.nmt.serving.requests import RequestError, Translation, check_cost, cost
from onmt_varattn.nmt.serving.turns import OutOfTimeError, Turns


@pytest.mark.parametrize("name", [*CLIENT_OPTIONS, *OTHER_NAMES])
def test_options_of_clients_have_the_types_of_the_command_line(name):
    action = translate_parser()._option_string_actions[f"-{name}"]
    kind = CLIENT_OPTIONS[OTHER_NAMES.get(name, name)]
    assert action.dest == OTHER_NAMES.get(name, name)
    if kind.type is bool:
        assert isinstance(action, argparse._StoreTrueAction)
    elif kind.type is str:
        assert set(kind.meta.choices) == set(action.choices)
    else:
        assert action.type is kind.type
        assert kind.meta.at_least <= kind.meta.at_most


def test_options_come_out_as_the_command_line_has_them():
    given = {"beam": 7, "alpha": 1, "length_penalty": "wu", "replace_unk": False}
    options = read_options(given)
    assert options == {"beam_size": 7, "alpha": 1.0, "length_penalty": "wu", "replace_unk": False}
    assert [type(value) for value in options.values()] == [int, float, str, bool]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 10**400, "1", None, [], {}, True])
def test_a_value_out_of_range_is_refused_by_name(value):
    for name in ("alpha", "beam", "length_penalty"):
        with pytest.raises(RequestError, match=f"'{name}' is not ") as refused:
            read_options({name: value})
        assert refused.value.code == 400


def allowed(access, **headers):
    try:
        access.check(Headers({name.replace("_", "-"): value for name, value in headers.items()}))
    except RequestError as error:
        return error.code != 403
    return True


def test_a_server_is_called_by_the_names_it_has():
    wide = Access.of(["0.0.0.0"], ["a.example.org", "2001:DB8::0:1"])
    for host in ("localhost:80", "192.0.2.7:5000", "[2001:db8::9]", "A.example.org", "127.0.0.1", "[::1]"):
        assert allowed(wide, Host=host), host
    for host in (
        "b.example.org",
        "example.org",
        "xa.example.org",
        "a.example.org:port",
        "[a.example.org]",
        "[::1",
    ):
        assert not allowed(wide, Host=host), host
    narrow = Access.of(["192.0.2.7"], ["2001:DB8::0:1"])
    assert allowed(narrow, Host="192.0.2.7:5000")
    assert allowed(narrow, Host="[2001:0db8::1]")
    assert not allowed(narrow, Host="192.0.2.8")
    assert not allowed(narrow)


def test_an_origin_is_the_host_itself():
    access = Access.of(["127.0.0.1"], ["a.example.org"])
    assert allowed(access, Host="a.example.org", Origin="https://a.example.org")
    assert not allowed(access, Host="a.example.org", Origin="https://a.example.org:8080")
    assert not allowed(access, Host="a.example.org", Origin="http://localhost")
    assert not allowed(access, Host="localhost", Origin="http://localhost", Sec_Fetch_Site="cross-site")


@pytest.mark.parametrize(
    "content", ["", "\n", "short\n", "a" * 15, "a" * 16 + "\nb", "two words in a line\n", "ä" * 20]
)
def test_a_token_that_is_none_is_refused_without_telling_it(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="must hold one line of at least 16 characters") as refused:
        read_token(str(path))
    assert not content.strip() or content.strip() not in str(refused.value)
    path.write_text("a" * 16 + "\n")
    assert read_token(str(path)) == "a" * 16


def opt(beam=5, max_length=100, samples=None):
    return argparse.Namespace(beam_size=beam, max_length=max_length, attention_samples=samples)


def sentences(*lengths):
    return Translation(0, [{"src": "a" * length} for length in lengths])


def test_the_cost_of_a_request_is_characters_by_beam_by_length():
    assert cost(sentences(200, 300), opt()) == 500 * 5 * 100
    assert cost(sentences(200, 300), opt(beam=10, max_length=1000)) == 500 * 10 * 1000
    assert cost(sentences(0, 1), opt(max_length=1)) == 200 * 5 * 100  # no sentence is free
    assert cost(sentences(200), opt(samples=30)) == 3 * cost(sentences(200), opt(samples=None))
    assert cost(sentences(200, 300), opt(), heads=8) == 500 * 5 * 100 + 8 * (200**2 + 300**2) / 4
    most = Limits().cost
    check_cost(sentences(*[150] * 64), opt(beam=10), most)  # ordinary use
    check_cost(sentences(2000), opt(beam=50), most)
    check_cost(sentences(*[150] * 64), opt(), most, heads=8)
    with pytest.raises(RequestError, match="may cost"):  # whose attention would take gigabytes
        check_cost(sentences(*[2000] * 8), opt(beam=1), most, heads=8)
    with pytest.raises(RequestError) as refused:
        check_cost(sentences(*[2000] * 64), opt(), most)
    assert refused.value.code == 413


def test_work_that_does_not_look_at_the_clock_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("onmt_varattn.nmt.serving.turns.LAST_STEP", 0.1)
    turns, free = Turns(Limits(wait=0.1, seconds=0.1)), threading.Event()
    begun = time.monotonic()
    with pytest.raises(RequestError, match="takes longer than"):
        turns.do(lambda: free.wait(10))
    assert time.monotonic() - begun < 2
    free.set()
    turns.close()


def test_work_that_was_stopped_leaves_nothing_in_memory():
    turns, kept = Turns(Limits(seconds=1e-9)), []

    def work():
        held = threading.Event()  # as a search holds its tensors
        kept.append(weakref.ref(held))
        time.sleep(0.01)
        turns.check()

    gc.disable()
    try:
        with pytest.raises(RequestError, match="takes longer than"):
            turns.do(work)
        assert kept[0]() is None
    finally:
        gc.enable()
    turns.close()


def test_nothing_begins_after_a_stop_and_what_runs_ends_soon(monkeypatch):
    monkeypatch.setattr("onmt_varattn.nmt.serving.turns.GRACE", 0.2)
    turns, begun = Turns(Limits()), threading.Event()

    def work():
        begun.set()
        while True:
            turns.check()
            time.sleep(0.01)

    found = []

    def client():
        with pytest.raises(RequestError, match="the server is stopping") as refused:
            turns.do(work)
        found.append(refused.value.code)

    clients = [threading.Thread(target=client) for _ in range(3)]
    for thread in clients:
        thread.start()
    assert begun.wait(10)
    turns.check()
    turns.stop()
    for thread in clients:
        thread.join(10)
    assert found == [503] * 3
    with pytest.raises(OutOfTimeError):
        turns.check()
    turns.close()
    with pytest.raises(RequestError, match="stopping"):
        turns.do(lambda: None)
