"""onmt_server: right answers to good requests, a status and a sentence for bad ones."""

import json
import os
import pickle
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import onmt_varattn
from onmt_varattn.bin import server
from onmt_varattn.plugin import register
from onmt_varattn.serving.app import build_app
from onmt_varattn.serving.config import read_config
from onmt_varattn.serving.models import Models
from onmt_varattn.serving.network import bind, is_loopback
from onmt_varattn.serving.requests import Limits
from tests.conftest import call
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
    ("POST", "translate", [{"src": "a", "id": 8}], JSON, 404, "there is no model 8; there is 7"),
    ("POST", "translate", [{"src": "a"}], JSON, 404, "there is no model 0"),
    (
        "POST",
        "translate",
        [{"src": "a", "id": 7}, {"src": "b", "id": 8}],
        JSON,
        400,
        "one model, not for 7 and 8",
    ),
    ("POST", "translate", [{"src": "a", "id": 7, "ref": 5}], JSON, 400, "'ref' of sentence 1"),
    ("POST", "translate", [{"src": "a", "id": 7, "src_feats": "x"}], JSON, 400, "'src_feats' of sentence 1"),
    ("POST", "translate", [{"src": "a", "id": 7, "src_feats": {"x": "1"}}], JSON, 400, "which has none"),
    ("POST", "translate", [{"src": "a", "id": 7}] * 5, JSON, 413, "5 sentences are more than the 4"),
    ("POST", "translate", [{"src": "a" * 101, "id": 7}], JSON, 413, "has 101 characters, more than 100"),
    ("POST", "translate", b" " * 5001, JSON, 413, "more than 5000 bytes"),
    ("GET", "translate", b"", None, 405, "use POST"),
    ("POST", "models", b"", None, 405, "use GET"),
    ("GET", "nothing", b"", None, 404, "nothing at /translator/nothing"),
    ("GET", "unload_model/8", b"", None, 404, "there is no model 8"),
    ("GET", "unload_model/-1", b"", None, 404, "nothing at"),
    ("GET", "to_cpu/8", b"", None, 404, "there is no model 8"),
    ("GET", "to_gpu/7", b"", None, 409, "there is no GPU"),
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
    ("POST", "clone_model/7", {"opt": {"beam": 10**6}}, JSON, 400, "'beam' is not a whole number up to 50"),
    ("POST", "clone_model/7", {"opt": {"beam": "9" * 9}}, JSON, 400, "'beam' is not a whole number up to 50"),
    ("POST", "clone_model/7", {"opt": {"beam": 2, "n_best": 3}}, JSON, 400, "-n_best 3 must be"),
    ("POST", "clone_model/7", {"opt": {"alpha": "x"}}, JSON, 400, "invalid float"),
    ("POST", "clone_model/7", {"opt": {"alpha": [1]}}, JSON, 400, "'alpha' is not a string, a number"),
    ("POST", "clone_model/7", {"opt": {"length_penalty": "-model"}}, JSON, 400, "expected one argument"),
]


@pytest.mark.parametrize(("method", "path", "body", "kind", "status", "message"), BAD)
def test_bad_requests_get_a_status_and_a_sentence(client, models, method, path, body, kind, status, message):
    data = body if isinstance(body, bytes) else json.dumps(body)
    answer = client.open(f"/translator/{path}", method=method, data=data, content_type=kind)
    assert answer.status_code == status, answer.data
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
    models._thread.submit(lambda: (busy.set(), free.wait(30)))
    assert busy.wait(30)
    answer = ask(client, lines[0])
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert "busy" in answer.json["error"]
    assert client.get("/translator/health").json == {"status": "ok"}
    free.set()
    models._thread.submit(lambda: None).result(30)
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
        "this server lets clients add 2 models, and no more",
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
    assert client.get("/translator/to_cpu/7").json == {"status": "ok", "model_id": 7}
    assert client.get("/translator/unload_model/7").json == {"status": "ok", "model_id": 7}
    again = client.get("/translator/unload_model/7")
    assert (again.status_code, again.json["error"]) == (409, "model 7 is not loaded")
    os.rename(tmp_path / "m.pt", tmp_path / "away.pt")
    answer = ask(client, lines[0])
    assert answer.status_code == 500
    assert str(tmp_path) not in answer.text
    os.rename(tmp_path / "away.pt", tmp_path / "m.pt")
    assert targets(ask(client, lines[0])) == direct.translate(lines[:1])
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
        ('{"models": [{"id": 1}]}', "model 1 of the list: 'model', the file of a checkpoint, is missing"),
        (
            '{"models": [{"model": "no.pt"}], "models_root": "/nowhere"}',
            "there is no checkpoint /nowhere/no.pt",
        ),
        ('{"models": [{"model": "m.pt", "timout": 3}]}', "unknown key 'timout'; did you mean 'timeout'?"),
        ('{"models": [{"model": "m.pt", "id": "a"}]}', "'id' a is not a whole number"),
        ('{"models": [{"model": "m.pt", "timeout": "a"}]}', "'timeout' \"a\" is not of the right kind"),
        ('{"models": [{"model": "m.pt", "opt": 3}]}', "'opt' is not an object"),
        (
            '{"models": [{"model": "m.pt", "id": 1}, {"model": "m.pt", "id": 1}]}',
            "two models have the 'id' 1",
        ),
        (
            '{"models": [{"model": "m.pt", "opt": {"baem": 3}}]}',
            "model 0: unknown option -baem; did you mean",
        ),
        ('{"models": [{"model": "m.pt", "opt": {"beam": 0}}]}', "-beam 0 must be at least 1"),
        ('{"models": [{"model": "m.pt", "opt": {"src": "x"}}]}', "'src' is for onmt_translate"),
        (
            '{"models": [{"model": "m.pt", "preprocess": ["no.such.function"]}]}',
            "model 0: ModuleNotFoundError",
        ),
        ('{"models": [{"model": "m.pt", "load": true}]}', "available_models/m.pt: refused: not a checkpoint"),
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
        ("-port 70000", "-port 70000 is not between 0 and 65535"),
        ("-ip no.such.host.invalid", "-ip no.such.host.invalid is not an address"),
        ("-ip 192.0.2.1", "-ip 192.0.2.1 -port 0: cannot be listened on"),
        ("-config no.json", "no.json: cannot be read: No such file or directory"),
        ("-max_sentences 0", "-max_sentences 0 must be at least 1"),
        ("-max_wait 0", "-max_wait 0.0 must be more than 0 seconds"),
        ("-max_clones -1", "-max_clones -1 must not be negative"),
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
    with bind(server.server_parser().parse_args([]).ip, 0) as here, bind("0.0.0.0", 0) as everywhere:
        assert is_loopback(here)
        assert not is_loopback(everywhere)


def test_what_a_client_sends_before_it_is_http_is_refused_in_json(models):
    from onmt_varattn.serving.network import http_server

    with bind("127.0.0.1", 0) as bound:
        http = http_server(build_app(models), bound, clients=2, request_bytes=1000)
        thread = threading.Thread(target=http.run, daemon=True)
        thread.start()
        answers = []
        for request in (b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\n"):
            with socket.create_connection(bound.getsockname(), timeout=30) as connection:
                connection.sendall(request)
                answers.append(b"".join(iter(lambda one=connection: one.recv(4096), b"")).decode())
        http.close()
        http.task_dispatcher.shutdown()
    assert [answer.split()[1] for answer in answers] == ["400", "413"]
    for answer in answers:
        assert json.loads(answer.split("\r\n\r\n", 1)[1])["status"] == "error"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="memory is read from /proc")
def test_many_clients_at_a_real_server(model, lines):
    figures = server_load.run(model, lines, clients=8, seconds=4)
    assert server_load.problems(figures) == []
    assert figures["good requests"] > 10
