"""onmt_server: right answers to good requests, a status and a sentence for bad ones."""

import contextlib
import gc
import http.client
import json
import os
import pickle
import re
import shutil
import signal
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import onmt_varattn
from onmt_varattn.bin.nmt import server
from onmt_varattn.nmt.plugin import register
from onmt_varattn.nmt.serving.access import Access
from onmt_varattn.nmt.serving.app import build_app
from onmt_varattn.nmt.serving.config import Limits, read_config
from onmt_varattn.nmt.serving.models import Models
from onmt_varattn.nmt.serving.network import HEADER_BYTES, bind, http_server, is_loopback
from tests.conftest import ROOT, call
from tests.faults import server_load

OPTIONS = {"beam": 3, "max_length": 10}
LIMITS = Limits(request_bytes=5000, sentences=4, characters=100, wait=30, clones=2)
JSON = "application/json"


def write_config(path, *entries, **more):
    path.write_text(json.dumps({"models": list(entries), **more}), encoding="utf-8")
    return path


def start(path, limits=LIMITS):
    register()
    models = Models(limits)
    for config in read_config(str(path)):
        models.add(config)
    return models


@pytest.fixture(scope="module")
def entry(model):
    return {"id": 7, "model": str(model), "load": True, "opt": OPTIONS}


@pytest.fixture(scope="module")
def models(entry, tmp_path_factory):
    models = start(write_config(tmp_path_factory.mktemp("server") / "conf.json", entry))
    yield models
    models.close()


@pytest.fixture
def client(models):
    return build_app(models).test_client()


@pytest.fixture(scope="module")
def lines(toy):
    return [line[: LIMITS.characters] for line in (toy / "test.de").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def direct(model):
    return onmt_varattn.load(model, **OPTIONS)


def ask(client, *sentences, model_id=7):
    return client.post("/translator/translate", json=[{"src": text, "id": model_id} for text in sentences])


def targets(answer, nth=0):
    assert answer.status_code == 200, answer.json
    return [item["tgt"] for item in answer.json[nth]]


def test_answers_are_opennmts(model, lines, tmp_path):
    from onmt.translate import TranslationServer

    options = {**OPTIONS, "n_best": 2, "report_align": True}
    config = {"id": 0, "model": model.name, "load": True, "opt": options}
    path = write_config(tmp_path / "conf.json", config, models_root=str(model.parent))
    stock = TranslationServer()
    stock.start(str(path))
    sentences = [{"src": f"  {lines[0]}\n"}, {"src": lines[1]}, {"src": ""}]
    texts, scores, _, _, links = stock.run(sentences)
    ours = start(path)
    answer = build_app(ours).test_client().post("/translator/translate", json=sentences)
    ours.close()
    assert links[0][0]
    for i, sentence in enumerate(sentences):
        for nth in range(2):
            right = {"tgt": texts[2 * i + nth], "pred_score": scores[2 * i + nth], "n_best": 2, **sentence}
            if links[2 * i + nth][0] is not None:
                right["align"] = links[2 * i + nth]
            assert answer.json[nth][i] == right
    assert ours.listing() == stock.list_models()


def test_any_text_is_translated_as_without_a_server(client, lines, direct):
    for text in (
        lines[0],
        f"{lines[0]}\n{lines[1]}"[:100],
        "a\0b\x07 \u2028 c",
        "漢字 漢字",
        "<s> </s> <blank>",
    ):
        assert targets(ask(client, text)) == direct.translate([text])
    assert targets(ask(client, " \t\n ", "", lines[2])) == ["", "", *direct.translate([lines[2]])]
    assert targets(ask(client, f"  {lines[3]} ")) == [f"  {direct.translate([lines[3]])[0]} "]


def test_new_words_leave_nothing_behind(client, models):
    vocab = models._find(7).translator.fields["src"].base_field.vocab
    before = len(vocab.stoi)
    assert vocab.stoi["\ue123"] == vocab.stoi["<unk>"]
    ask(client, "\ue123 \ue124", "\ue125")
    assert len(vocab.stoi) == before


BAD = [
    ("POST", "translate", b"[{", JSON, 400, "not JSON"),
    ("POST", "translate", b"", JSON, 400, "not JSON"),
    ("POST", "translate", b'[{"src": "\xff"}]', JSON, 400, "not JSON"),
    ("POST", "translate", b"[" * 4000, JSON, 400, "not JSON"),
    ("POST", "translate", b'[{"src": "a", "id": 7}]', "text/plain", 415, "Content-Type: application/json"),
    ("POST", "translate", b'[{"src": "a", "id": 7}]', None, 415, "Content-Type: application/json"),
    ("POST", "translate", {"src": "a", "id": 7}, JSON, 400, "a list of sentences"),
    ("POST", "translate", [], JSON, 400, "a list of sentences"),
    ("POST", "translate", ["a"], JSON, 400, "a list of sentences"),
    ("POST", "translate", None, JSON, 400, "a list of sentences"),
    ("POST", "translate", [{"id": 7}], JSON, 400, "sentence 1 has no 'src'"),
    (
        "POST",
        "translate",
        [{"src": "a", "id": 7}, {"src": 1, "id": 7}],
        JSON,
        400,
        "'src' of sentence 2 is not",
    ),
    ("POST", "translate", [{"src": None, "id": 7}], JSON, 400, "'src' of sentence 1 is not a string"),
    ("POST", "translate", [{"src": "a \ud800", "id": 7}], JSON, 400, "surrogate"),
    ("POST", "translate", [{"src": "a", "id": "7"}], JSON, 400, "not a whole number"),
    ("POST", "translate", [{"src": "a", "id": True}], JSON, 400, "not a whole number"),
    ("POST", "translate", [{"src": "a", "id": 8}], JSON, 404, "there is no model 8; the models are 7"),
    ("POST", "translate", [{"src": "a"}], JSON, 404, "there is no model 0"),
    (
        "POST",
        "translate",
        [{"src": "a", "id": 7}, {"src": "b", "id": 8}],
        JSON,
        400,
        "one model, not for several such as 7 and 8",
    ),
    ("POST", "translate", [{"src": "a", "id": 7, "ref": 5}], JSON, 400, "'ref' of sentence 1"),
    ("POST", "translate", [{"src": "a", "id": 7, "src_feats": "x"}], JSON, 400, "'src_feats' of sentence 1"),
    ("POST", "translate", [{"src": "a", "id": 7, "src_feats": {"x": "1"}}], JSON, 400, "which has none"),
    ("POST", "translate", [{"src": "a", "id": 7}] * 5, JSON, 413, "5 sentences, more than 4"),
    ("POST", "translate", [{"src": "a" * 101, "id": 7}], JSON, 413, "has 101 characters, more than 100"),
    ("POST", "translate", b" " * 5001, JSON, 413, "more than 5000 bytes"),
    ("GET", "translate", b"", None, 405, "use POST"),
    ("POST", "models", b"", None, 405, "use GET"),
    ("GET", "nothing", b"", None, 404, "/translator/nothing is not a route"),
    ("POST", "unload_model/8", b"", JSON, 404, "there is no model 8"),
    ("POST", "unload_model/-1", b"", JSON, 404, "is not a route"),
    ("POST", "unload_model/7", b"", "text/plain", 415, "Content-Type: application/json"),
    ("POST", "unload_model/7", b"", None, 415, "Content-Type: application/json"),
    ("POST", "to_cpu/8", b"", JSON, 404, "there is no model 8"),
    ("POST", "to_gpu/7", b"", JSON, 409, "there is no GPU"),
    ("GET", "unload_model/7", b"", None, 405, "use POST, with the header 'Content-Type: application/json'"),
    ("GET", "to_cpu/7", b"", None, 405, "use POST"),
    ("GET", "to_gpu/7", b"", None, 405, "use POST"),
    ("GET", "clone_model/7", b"", None, 405, "use POST"),
    ("HEAD", "unload_model/7", b"", None, 405, None),
    ("OPTIONS", "unload_model/7", b"", None, 405, "use POST"),
    ("OPTIONS", "models", b"", None, 405, "use GET"),
    ("POST", "clone_model/8", {}, JSON, 404, "there is no model 8"),
    ("POST", "clone_model/7", [], JSON, 400, "send an object"),
    ("POST", "clone_model/7", {"opt": []}, JSON, 400, "'opt' is not an object"),
    ("POST", "clone_model/7", {"timeout": "1"}, JSON, 400, "'timeout' is not a number"),
    ("POST", "clone_model/7", b'{"timeout": NaN}', JSON, 400, "'timeout' is not a number"),
    ("POST", "clone_model/7", {"opt": {"models": ["/etc/passwd"]}}, JSON, 400, "'models' is not an option"),
    (
        "POST",
        "clone_model/7",
        {"opt": {"log_file": "/nowhere/log"}},
        JSON,
        400,
        "'log_file' is not an option",
    ),
    ("POST", "clone_model/7", {"opt": {"src_feats": "exit()"}}, JSON, 400, "'src_feats' is not an option"),
    ("POST", "clone_model/7", {"opt": {"beam": 2, "n_best": 3}}, JSON, 400, "-n_best 3 must be"),
    (
        "POST",
        "clone_model/7",
        {"opt": {"min_length": 11}},
        JSON,
        400,
        "-min_length 11 is above -max_length 10",
    ),
    ("POST", "clone_model/7", {"opt": {"beam": 2, "beam_size": 2}}, JSON, 400, "'beam_size' is given twice"),
    (
        "POST",
        "clone_model/7",
        {"opt": {"random_sampling_topk": 999_999}},
        JSON,
        400,
        "target words of the model",
    ),
    (
        "POST",
        "clone_model/7",
        {"opt": {"test_attention": "soft", "kmax": 2}},
        JSON,
        400,
        "-kmax does not go with",
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "kind", "status", "message"), BAD)
def test_bad_requests_get_a_status_and_a_sentence(client, models, method, path, body, kind, status, message):
    data = body if isinstance(body, bytes) else json.dumps(body)
    answer = client.open(f"/translator/{path}", method=method, data=data, content_type=kind)
    assert answer.status_code == status, answer.data
    if method == "HEAD":
        return
    assert answer.json.keys() == {"status", "error"}
    assert answer.json["status"] == "error"
    assert message in answer.json["error"]
    assert "\n" not in answer.json["error"]
    (listed,) = models.listing()
    assert listed["loaded"]


def test_a_request_at_the_limits_is_answered(client, direct):
    texts = ["ab " * 33 + "a"] * 4
    assert targets(ask(client, *texts)) == direct.translate(texts)
    body = json.dumps([{"src": "a", "id": 7}]).encode()
    padded = body + b" " * (5000 - len(body))
    assert client.post("/translator/translate", data=padded, content_type=JSON).status_code == 200


def test_an_unforeseen_failure_says_nothing_of_the_inside(client, models, lines, direct, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise KeyError("a secret")

    with monkeypatch.context() as patch:
        patch.setattr(models._find(7).translator, "translate", fail)
        answer = ask(client, lines[0])
    assert answer.status_code == 500
    assert answer.json == {"status": "error", "error": "the server failed at this request; its log says why"}
    assert "a secret" in caplog.text
    assert targets(ask(client, lines[0])) == direct.translate(lines[:1])


def test_requests_are_logged_if_asked_for(models, caplog):
    client = build_app(models, log_requests=True).test_client()
    with caplog.at_level("INFO"):
        ask(client, "a word")
        too_large = client.post("/translator/translate", data=b" " * 5001, content_type=JSON)
    assert too_large.status_code == 413
    assert "a word" in caplog.text
    assert "/translator/translate: 200" in caplog.text
    assert "/translator/translate: 413" in caplog.text


def test_a_path_cannot_forge_a_line_of_the_log(models, caplog):
    client = build_app(models, log_requests=True).test_client()
    with caplog.at_level("INFO"):
        assert client.get("/translator/x%0a[INFO]%20forged%1b[31m").status_code == 404
    assert caplog.messages
    assert all(
        "forged" not in line or r"x\n[INFO] forged\x1b[31m" in line for line in caplog.text.splitlines()
    )


def test_each_of_many_clients_gets_its_own_answer(models, lines, direct):
    right = direct.translate(lines)

    def work(line):
        return targets(ask(build_app(models).test_client(), line))[0]

    with ThreadPoolExecutor(10) as clients:
        assert list(clients.map(work, lines)) == right
    assert len(set(right)) > 5


def test_who_waits_too_long_may_come_again(entry, tmp_path, lines, direct):
    models = start(write_config(tmp_path / "conf.json", entry), Limits(wait=0.05))
    client = build_app(models).test_client()
    free, busy = threading.Event(), threading.Event()
    models.turns._thread.submit(lambda: (busy.set(), free.wait(30)))
    assert busy.wait(30)
    answer = ask(client, lines[0])
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert "busy" in answer.json["error"]
    assert client.get("/translator/health").json == {"status": "ok"}
    free.set()
    models.turns._thread.submit(lambda: None).result(30)
    assert targets(ask(client, lines[0])) == direct.translate(
        lines[:1]
    )  # its turn takes longer than its wait
    models.close()
    assert ask(client, lines[0]).status_code == 503


def test_clones_have_a_clients_options_and_a_limit(entry, tmp_path, model, lines):
    models = start(write_config(tmp_path / "conf.json", entry))
    client = build_app(models).test_client()
    first = client.post(
        "/translator/clone_model/7", json={"opt": {"beam": 1, "max_length": 4}, "timeout": 99}
    )
    assert (first.json["status"], first.json["model_id"]) == ("ok", 8)
    assert first.json["load_time"] > 0
    right = onmt_varattn.load(model, beam=1, max_length=4).translate(lines[:2])
    assert targets(ask(client, *lines[:2], model_id=8)) == right
    second = client.post("/translator/clone_model/7", json={})
    assert targets(ask(client, lines[0], model_id=second.json["model_id"])) == targets(ask(client, lines[0]))
    third = client.post("/translator/clone_model/7", json={})
    assert (third.status_code, third.json["error"]) == (
        403,
        "clients may add 2 models to this server (-max_clones)",
    )
    assert [item["timeout"] for item in client.get("/translator/models").json] == [-1, 99, -1]
    models.close()
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)  # or the process would wait for them


def test_a_model_that_was_unloaded_comes_back(entry, tmp_path, model, lines, direct):
    shutil.copy(model, tmp_path / "m.pt")
    path = write_config(tmp_path / "conf.json", {**entry, "model": "m.pt"}, models_root=str(tmp_path))
    models = start(path)
    client = build_app(models).test_client()
    assert client.post("/translator/to_cpu/7", content_type=JSON).json == {"status": "ok", "model_id": 7}
    assert client.post("/translator/unload_model/7", content_type=JSON).json == {
        "status": "ok",
        "model_id": 7,
    }
    again = client.post("/translator/unload_model/7", content_type=JSON)
    assert (again.status_code, again.json["error"]) == (409, "model 7 is not loaded")
    os.rename(tmp_path / "m.pt", tmp_path / "away.pt")
    answer = ask(client, lines[0])
    assert answer.status_code == 500
    assert str(tmp_path) not in answer.text
    os.rename(tmp_path / "away.pt", tmp_path / "m.pt")
    assert targets(ask(client, lines[0])) == direct.translate(lines[:1])
    models.close()


def test_a_model_leaves_when_nobody_asks_for_it_and_its_clones_with_it(entry, tmp_path, lines, direct):
    config = {**entry, "timeout": 0.3, "on_timeout": "unload"}
    models = start(write_config(tmp_path / "conf.json", config))
    client = build_app(models).test_client()
    clone = client.post("/translator/clone_model/7", json={}).json["model_id"]
    for _ in range(2):
        assert targets(ask(client, lines[0])) == direct.translate(lines[:1])
        assert targets(ask(client, lines[0], model_id=clone)) == direct.translate(lines[:1])
        end = time.monotonic() + 30
        while any(item["loaded"] for item in models.listing()) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(item["loaded"] for item in models.listing())
    models.close()


def test_prefixes_are_continued(entry, tmp_path, lines):
    models = start(write_config(tmp_path / "conf.json", {**entry, "opt": {**OPTIONS, "tgt_prefix": True}}))
    client = build_app(models).test_client()
    assert "needs a 'ref'" in ask(client, lines[0]).json["error"]
    sentences = [{"src": lines[0], "id": 7, "ref": "the dog"}, {"src": lines[1], "id": 7, "ref": "his"}]
    first, second = targets(client.post("/translator/translate", json=sentences))
    assert first.startswith("the dog")
    assert second.startswith("his")
    models.close()


class Payload:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("load", [True, False])
def test_a_checkpoint_with_code_is_not_served(tmp_path, capsys, load):
    torch.save({"model": Payload(tmp_path / "witness")}, tmp_path / "evil.pt", pickle_module=pickle)
    path = write_config(tmp_path / "conf.json", {"id": 1, "model": str(tmp_path / "evil.pt"), "load": load})
    if load:
        assert call(server.main, "-config", path, "-port", 0) == 2
        assert "evil.pt: refused: it names posix.mkdir" in capsys.readouterr().err
    else:
        models = start(path)
        assert ask(build_app(models).test_client(), "a", model_id=1).status_code == 500
        models.close()
    assert not (tmp_path / "witness").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "conf.json: not JSON"),
        ("[]", "conf.json: not an object"),
        ('{"models": {}}', "'models' is missing, or not a list"),
        ('{"models": []}', "'models' is missing, or not a list"),
        ('{"models_root": "x"}', "'models' is missing, or not a list"),
        ('{"model": [{}]}', "unknown key 'model'; did you mean 'models'?"),
        ('{"models": [1]}', "model 1 of the list is not an object"),
        ('{"models": [{"id": 1}]}', "model 1 of the list: 'model', the path of a checkpoint, is missing"),
        (
            '{"models": [{"model": "no.pt"}], "models_root": "/nowhere"}',
            "the checkpoint /nowhere/no.pt does not exist",
        ),
        ('{"models": [{"model": "m.pt", "timout": 3}]}', "unknown key 'timout'; did you mean 'timeout'?"),
        ('{"models": [{"model": "m.pt", "id": "a"}]}', "'id' a is not a whole number"),
        ('{"models": [{"model": "m.pt", "timeout": "a"}]}', "'timeout' \"a\" has the wrong type"),
        ('{"models": [{"model": "m.pt", "opt": 3}]}', "'opt' is not an object"),
        (
            '{"models": [{"model": "m.pt", "id": 1}, {"model": "m.pt", "id": 1}]}',
            "two models have the 'id' 1",
        ),
        (
            '{"models": [{"model": "m.pt", "opt": {"baem": 3}}]}',
            "model 0: unknown option baem; did you mean beam",
        ),
        ('{"models": [{"model": "m.pt", "opt": {"beam": 0}}]}', "-beam 0 must be at least 1"),
        ('{"models": [{"model": "m.pt", "opt": {"src": "x"}}]}', "'src' is an option of onmt_translate only"),
        ('{"models": [{"model": "m.pt", "opt": {"replace_unk": "-h"}}]}', "ignored explicit argument '-h'"),
        ('{"models": [{"model": "m.pt", "opt": {"alpha": "-save_config=x"}}]}', "invalid float value"),
        ('{"models": [{"model": "m.pt", "opt": {"h": true}}]}', "'h' is for the command line"),
        ('{"models": [{"model": "m.pt", "opt": {"save_conf": "x"}}]}', "unknown option save_conf"),
        ('{"models": [{"model": "m.pt", "opt": {"save_config=x": "y"}}]}', "unknown option save_config=x"),
        (
            '{"models": [{"model": "m.pt", "preprocess": ["no.such.function"]}]}',
            "model 0: ModuleNotFoundError",
        ),
        ('{"models": [{"model": "m.pt", "load": true}]}', "available_models/m.pt: not a whole checkpoint"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(tmp_path, monkeypatch, capsys, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "available_models").mkdir()
    (tmp_path / "available_models/m.pt").write_text("x")
    (tmp_path / "conf.json").write_text(content)
    assert call(server.main, "-config", "conf.json", "-port", 0) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "INFO" not in line]
    assert len(said) == 1
    assert message in said[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-port 70000", "-port 70000 must be between 0 and 65535"),
        ("-ip no.such.host.invalid", "-ip no.such.host.invalid is not an address"),
        ("-ip 192.0.2.1", "-ip 192.0.2.1 -port 0: cannot be listened on"),
        ("-config no.json", "no.json: cannot be read: No such file or directory"),
        ("-max_sentences 0", "-max_sentences 0 must be at least 1"),
        ("-max_wait 0", "-max_wait 0.0 must be above 0"),
        ("-max_clones -1", "-max_clones -1 must not be negative"),
        ("-max_cost 0", "-max_cost 0 must be at least 1"),
        ("-max_seconds -3", "-max_seconds -3.0 must be above 0"),
        ("-allowed_host http://a.org", "-allowed_host http://a.org is not a name or an address"),
        ("-allowed_host *.a.org", "-allowed_host *.a.org is not a name or an address"),
        ("-token_file no.token", "-token_file no.token: cannot be read: No such file or directory"),
        ("-host 192.0.2.1", "-ip 192.0.2.1 -port 0: cannot be listened on"),
    ],
)
def test_wrong_options_are_one_sentence(entry, tmp_path, capsys, words, message):
    path = write_config(tmp_path / "conf.json", {**entry, "load": False})
    assert call(server.main, "-config", path, "-port", 0, *words.split()) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_one_sentence_before_models_are_loaded(tmp_path, capsys):
    (tmp_path / "m.pt").write_text("x")
    path = write_config(tmp_path / "conf.json", {"model": str(tmp_path / "m.pt"), "load": True})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert call(server.main, "-config", path, "-port", port) == 2
    assert f"-port {port} of 127.0.0.1 is in use by another program" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_only_this_machine_is_served_unless_told_otherwise():
    with bind(server.ServerSettings().ip, 0) as here, bind("0.0.0.0", 0) as everywhere:
        assert is_loopback(here)
        assert not is_loopback(everywhere)


def test_what_a_client_sends_before_it_is_http_is_refused_in_json(models):
    answers = []
    with real_server(models, clients=2, request_bytes=1000) as address:
        for request in (
            b"nonsense\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\n",
            (b"GET / HTTP/1.1\r\nX: " + b"x" * HEADER_BYTES)[:HEADER_BYTES],
        ):
            with socket.create_connection(address, timeout=30) as connection:
                connection.sendall(request)
                answers.append(b"".join(iter(lambda one=connection: one.recv(4096), b"")).decode())
    assert [answer.split()[1] for answer in answers] == ["400", "413", "431"]
    for answer in answers:
        assert json.loads(answer.split("\r\n\r\n", 1)[1])["status"] == "error"


# An option of a client that is no number, no flag and none of its words is refused by its name.
ILL_TYPED = [
    ({"replace_unk": "-save_config=witness"}, "'replace_unk' is not true or false"),
    ({"replace_unk": "-h"}, "'replace_unk' is not true or false"),
    ({"replace_unk": "--config=witness"}, "'replace_unk' is not true or false"),
    ({"replace_unk": 1}, "'replace_unk' is not true or false"),
    ({"alpha": "-h"}, "'alpha' is not a number from 0 to 10"),
    ({"alpha": "1"}, "'alpha' is not a number from 0 to 10"),
    ({"alpha": [1]}, "'alpha' is not a number from 0 to 10"),
    ({"alpha": True}, "'alpha' is not a number from 0 to 10"),
    ({"beam": 10**6}, "'beam' is not a whole number from 1 to 50"),
    ({"beam": "9" * 9}, "'beam' is not a whole number from 1 to 50"),
    ({"beam": 2.0}, "'beam' is not a whole number from 1 to 50"),
    ({"beam": True}, "'beam' is not a whole number from 1 to 50"),
    ({"beam": None}, "'beam' is not a whole number from 1 to 50"),
    ({"max_length": 1001}, "'max_length' is not a whole number from 1 to 1000"),
    ({"min_length": -1}, "'min_length' is not a whole number from 0 to 1000"),
    ({"length_penalty": "-model"}, "'length_penalty' is not one of none, wu, avg"),
    ({"length_penalty": ["wu"]}, "'length_penalty' is not one of none, wu, avg"),
    ({"test_attention": "soft\n"}, "'test_attention' is not one of exact, soft"),
    ({"-h": True}, "'-h' is not an option that clients may set"),
    ({"h": True}, "'h' is not an option that clients may set"),
    ({"save_config": "witness"}, "'save_config' is not an option that clients may set"),
    ({"config": "witness"}, "'config' is not an option that clients may set"),
    ({"beam=3": 3}, "'beam=3' is not an option that clients may set"),
    ({"phrase_table": "/etc/passwd"}, "'phrase_table' is not an option that clients may set"),
    ({"gpu": 0}, "'gpu' is not an option that clients may set"),
    ({"batch_size": 10**9}, "'batch_size' is not an option that clients may set"),
]


@pytest.mark.parametrize(("options", "message"), ILL_TYPED)
def test_no_option_of_a_client_is_parsed(client, models, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    answer = client.post("/translator/clone_model/7", json={"opt": options})
    assert (answer.status_code, answer.json["error"]) == (400, message)
    assert list(tmp_path.iterdir()) == []
    assert len(models.listing()) == 1


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), MemoryError()])
def test_whatever_ends_a_translation_it_is_answered(client, models, lines, direct, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    for owner, name in ((models._find(7).translator, "translate"), (models, "translate")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            answer = ask(client, lines[0])
        assert answer.status_code == 500
        assert answer.json["error"] == "the server failed at this request; its log says why"
        assert targets(ask(client, lines[0])) == direct.translate(lines[:1])


HERE = {"Host": "localhost:5000"}
OWN_PAGE = {"Origin": "http://localhost:5000", "Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "LocalHost.:5000"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:5000"}, 200),
        ({"Host": "translate.example.org"}, 200),  # of -allowed_host
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:5000"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "192.0.2.7"}, 403),
        ({"Host": "localhost, evil.example"}, 403),
        ({"Host": "localhost@evil.example"}, 403),
        ({"Host": ""}, 403),
        ({**HERE, "X-Forwarded-Host": "evil.example"}, 200),
        ({"Host": "evil.example", "X-Forwarded-Host": "localhost"}, 403),
        ({**HERE, **OWN_PAGE}, 200),
        ({**HERE, "Sec-Fetch-Site": "none"}, 200),
        ({**HERE, "Origin": "http://evil.example"}, 403),
        ({**HERE, "Origin": "http://localhost:3000"}, 403),
        ({**HERE, "Origin": "null"}, 403),
        ({**HERE, "Origin": ""}, 403),
        ({**HERE, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**HERE, "Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_no_foreign_page_is_answered(models, headers, status):
    app = build_app(models, access=Access.of(["127.0.0.1"], ["translate.example.org"]))
    answers = [
        app.test_client().get("/translator/models", headers=headers),
        app.test_client().get("/translator/health", headers=headers),
        app.test_client().post("/translator/translate", json=[{"src": "a", "id": 7}], headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [status] * 3
    answers.append(app.test_client().options("/translator/translate", headers=headers))
    assert answers[-1].status_code == (405 if status == 200 else 403)
    for answer in answers:
        assert not [name for name, _ in answer.headers if name.lower().startswith("access-control")]
        if status == 403:
            assert re.match(r"the header '(Host|Origin|Sec-Fetch-Site)' ", answer.json["error"])


def test_a_state_is_not_changed_by_get(client, models):
    for action in ("unload_model", "to_cpu", "to_gpu", "clone_model"):
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE"):
            answer = client.open(f"/translator/{action}/7", method=method)
            assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    (listed,) = models.listing()
    assert listed["loaded"]


def test_a_token_is_demanded_of_all_but_health(models):
    token = "0123456789abcdef"
    client = build_app(models, access=Access.of(["127.0.0.1"], token=token)).test_client()

    def status(path, authorization):
        headers = {} if authorization is None else {"Authorization": authorization}
        return client.get(f"/translator/{path}", headers=headers)

    for wrong in (None, "", "Bearer", "Bearer ", f"Bearer {token[:-1]}", f"Bearer {token}x", f"Basic {token}",
                  token, "Bearer \xff"):  # fmt: skip
        answer = status("models", wrong)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert token not in answer.text
        assert status("nothing", wrong).status_code == 401  # who may not ask is not told what there is
        assert status("health", wrong).json == {"status": "ok"}
    assert status("models", f"Bearer {token}").status_code == 200
    assert status("models", f"bearer {token}").status_code == 200


def test_a_request_that_costs_too_much_is_refused_at_once(entry, tmp_path, lines):
    models = start(write_config(tmp_path / "conf.json", {**entry, "opt": {"beam": 5}}), Limits())
    client = build_app(models).test_client()
    begun = time.monotonic()
    answer = ask(client, *["a " * 1000] * 64)
    assert time.monotonic() - begun < 2
    assert answer.status_code == 413
    assert "may cost 64,000,000, more than 10,000,000" in answer.json["error"]
    wide = client.post("/translator/clone_model/7", json={"opt": {"beam": 50, "max_length": 1000}})
    assert ask(client, *["a"] * 3, model_id=wide.json["model_id"]).status_code == 413  # however short
    assert ask(client, lines[0]).status_code == 200
    models.close()


SLOW = {"beam": 50, "min_length": 1000, "max_length": 1000}  # takes seconds, even with the smallest of models


def test_a_translation_is_stopped_when_its_time_is_over(entry, tmp_path, lines, direct):
    models = start(write_config(tmp_path / "conf.json", entry), Limits(seconds=0.5))
    client = build_app(models).test_client()
    clone = client.post("/translator/clone_model/7", json={"opt": SLOW}).json["model_id"]
    for _ in range(2):
        begun = time.monotonic()
        answer = ask(client, lines[0], model_id=clone)
        assert 0.4 < time.monotonic() - begun < 3
        assert answer.status_code == 503
        assert "takes longer than 0.5 seconds" in answer.json["error"]
        assert targets(ask(client, lines[0])) == direct.translate(lines[:1])
    models.close()


def test_who_has_waited_too_long_does_not_get_a_turn(entry, tmp_path, lines):
    models = start(write_config(tmp_path / "conf.json", entry), Limits(wait=0.3, clients=3))
    client = build_app(models).test_client()
    begun = []
    real = models._find(7).run
    models._find(7).run = lambda inputs: (begun.append(1), time.sleep(0.6), real(inputs))[2]
    with ThreadPoolExecutor(5) as clients:
        answers = list(clients.map(lambda _: ask(client, lines[0]), range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 503, 503, 503, 503]
    errors = [answer.json["error"] for answer in answers if answer.status_code == 503]
    assert errors.count("the server is busy: 3 requests are waiting") == 2
    assert errors.count("the server is busy: the request waited for 0.3 seconds") == 2
    assert len(begun) == 1
    models.close()


def test_clones_share_the_weights_of_their_model(entry, tmp_path, lines, model, direct):
    models = start(write_config(tmp_path / "conf.json", {**entry, "load": False}))
    client = build_app(models).test_client()
    clone = client.post("/translator/clone_model/7", json={"opt": {"kmax": 1, "beam_size": 1}}).json[
        "model_id"
    ]
    again = client.post(f"/translator/clone_model/{clone}", json={"opt": {"kmax": 0}}).json["model_id"]
    originals = direct.translate(lines[:6])
    others = onmt_varattn.load(model, kmax=1, beam=1, max_length=10).translate(lines[:6])
    greedy = onmt_varattn.load(model, beam=1, max_length=10).translate(lines[:6])
    assert len({tuple(originals), tuple(others), tuple(greedy)}) == 3
    for _ in range(2):  # one does not change how the other decodes
        for which, right in ((7, originals), (clone, others), (again, greedy)):
            assert targets(ask(client, *lines[:3], model_id=which)) == right[:3]
            assert targets(ask(client, *lines[3:6], model_id=which)) == right[3:]
    assert len({id(models._find(which).translator.model) for which in (7, clone, again)}) == 1
    assert models.listing()[1]["opt"] == {"max_length": 10, "kmax": 1, "beam_size": 1}
    weights = weakref.ref(models._find(7).translator.model)
    client.post("/translator/unload_model/7", content_type=JSON)
    assert [item["loaded"] for item in models.listing()] == [False] * 3
    gc.collect()
    assert weights() is None
    assert targets(ask(client, *lines[:3], model_id=again)) == greedy[:3]
    models.close()


@contextlib.contextmanager
def real_server(models, **kwargs):
    with bind("127.0.0.1", 0) as bound:
        settings = {"clients": 4, "request_bytes": 100_000, **kwargs}
        running = http_server(build_app(models), bound, **settings)
        threading.Thread(target=running.run, daemon=True).start()
        try:
            yield bound.getsockname()
        finally:
            running.task_dispatcher.shutdown()
            running.close()


SLOWLY = [
    b"",
    b"GET /translator/models HT",
    b"POST /translator/translate HTTP/1.1\r\nHost: localhost\r\nX-Long: 1",
    b"POST /translator/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n[",
    b"POST /translator/translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\n",
]


def get_models(address):
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=20)) as connection:
        begun = time.monotonic()
        connection.request("GET", "/translator/models")
        return connection.getresponse().status, time.monotonic() - begun


@pytest.mark.parametrize("connections", [1000, 20])
def test_slow_clients_do_not_keep_others_out(models, connections, caplog):
    with real_server(models, connections=connections) as address, contextlib.ExitStack() as stack:
        for i in range(150):
            slow = stack.enter_context(socket.create_connection(address, timeout=20))
            slow.sendall(SLOWLY[i % len(SLOWLY)])
            if i % 30 == 29:
                status, seconds = get_models(address)
                assert status == 200
                assert seconds < 5
    assert "reached the connection limit" not in caplog.text  # or they would fill the log


def test_slow_clients_are_cut_off_though_they_go_on_sending(models):
    with real_server(models, arrival_seconds=1) as address:
        begun = time.monotonic()
        with socket.create_connection(address, timeout=20) as slow, pytest.raises(ConnectionError):
            slow.sendall(SLOWLY[2])
            for _ in range(100):
                slow.sendall(b"1")
                time.sleep(0.1)
        assert 1 < time.monotonic() - begun < 6


def test_a_server_at_work_ends_soon_after_sigterm(model, tmp_path):
    more = ["-max_seconds", "600", "-max_cost", str(10**12)]
    with server_load.serving(model, tmp_path, more) as (process, port), ThreadPoolExecutor(1) as pool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

        def post(path, content):
            connection.request("POST", f"/translator/{path}", json.dumps(content), {"Content-Type": JSON})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        clone = post(f"clone_model/{server_load.MODEL_ID}", {"opt": SLOW})[1]["model_id"]
        waiting = pool.submit(post, "translate", [{"src": "a b " * 100, "id": clone}] * 8)
        time.sleep(1)
        assert not waiting.done()
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        assert time.monotonic() - begun < 10
        assert waiting.result(10) == (503, {"status": "error", "error": "the server is stopping"})
    assert (tmp_path / "log").read_text("utf-8").endswith("onmt_server: stopped\n")


def test_a_server_ends_soon_after_sigterm_though_work_does_not(model, tmp_path):
    (tmp_path / "sleepy.py").write_text("import time\ndef sleep(text, model):\n    time.sleep(60)")
    start = ["-c", "from onmt_varattn.bin.nmt import server; server.STOP_SECONDS = 1; server.main()"]
    entry = {"preprocess": ["sleepy.sleep"]}
    with server_load.serving(model, tmp_path, start=start, entry=entry) as (process, port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", server_load.TRANSLATE, server_load.one(), {"Content-Type": JSON})
        time.sleep(1)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 1
        assert time.monotonic() - begun < 5
    assert (tmp_path / "log").read_text("utf-8").endswith("stopped, aborting unfinished work\n")


def test_what_the_document_promises_is_tested_here():
    named = re.findall(r"`(test_\w+_\w+)`", (ROOT / "docs/server.md").read_text("utf-8"))
    assert len(named) > 5
    assert [name for name in named if name not in globals()] == []


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="memory is read from /proc")
def test_many_clients_at_a_real_server(model, lines):
    figures = server_load.run(model, lines, clients=8, seconds=6, hostile=8)
    assert server_load.problems(figures) == []
    assert figures["good requests"] > 10
    assert figures["slow connections"] >= 80
