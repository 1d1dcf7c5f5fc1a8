"""Many clients at a real server at once, with good and bad requests mixed.

    python -m tests.faults.server_load -model model.pt -src lines.txt -clients 50 -seconds 60

Every good request is compared with a translation made beforehand without a server, every bad one
must get a 4xx and a message. Linux only: the server's memory is read from /proc.
"""

import argparse
import collections
import contextlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MODEL_ID = 3
OPTIONS = {"beam": 4, "max_length": 20}
LIMITS = {"max_request_bytes": 200_000, "max_sentences": 8, "max_characters": 500}
BAD_SHARE = 0.3  # of all requests
MEMORY_SAMPLES = 6  # evenly over the time; the first ends the warm-up
MOST_GROWTH = 1.1  # of memory, after the warm-up
UNKNOWN = "\ue000\ue001"  # gives way to other characters of private use, which no model knows either

JSON = {"Content-Type": "application/json"}
TRANSLATE = "/translator/translate"


def one(**item):
    return json.dumps([{"id": MODEL_ID, "src": "a", **item}])


# What is wrong: method, path, headers, body.
BAD = {
    "no JSON": ("POST", TRANSLATE, JSON, "[{"),
    "no UTF-8": ("POST", TRANSLATE, JSON, b'[{"src": "\xff", "id": 3}]'),
    "no body": ("POST", TRANSLATE, JSON, ""),
    "brackets": ("POST", TRANSLATE, JSON, "[" * 100_000),
    "another type": ("POST", TRANSLATE, {"Content-Type": "text/plain"}, one()),
    "no list": ("POST", TRANSLATE, JSON, json.dumps({"src": "a", "id": MODEL_ID})),
    "an empty list": ("POST", TRANSLATE, JSON, "[]"),
    "no objects": ("POST", TRANSLATE, JSON, '["a"]'),
    "no src": ("POST", TRANSLATE, JSON, json.dumps([{"id": MODEL_ID}])),
    "a src that is a number": ("POST", TRANSLATE, JSON, one(src=1)),
    "a src that is null": ("POST", TRANSLATE, JSON, one(src=None)),
    "half a surrogate pair": ("POST", TRANSLATE, JSON, one(src="\ud800")),
    "an id that is a string": ("POST", TRANSLATE, JSON, one(id="3")),
    "an unknown id": ("POST", TRANSLATE, JSON, one(id=4)),
    "two ids": ("POST", TRANSLATE, JSON, json.dumps([{"src": "a", "id": 3}, {"src": "a", "id": 4}])),
    "features": ("POST", TRANSLATE, JSON, one(src_feats={"case": "1"})),
    "a ref that is a list": ("POST", TRANSLATE, JSON, one(ref=["a"])),
    "too many sentences": ("POST", TRANSLATE, JSON, json.dumps([{"src": "a", "id": MODEL_ID}] * 9)),
    "too long a sentence": ("POST", TRANSLATE, JSON, one(src="a " * 251)),
    "too large a request": ("POST", TRANSLATE, JSON, one(src="a" * 300_000)),
    "another method": ("GET", TRANSLATE, {}, None),
    "another path": ("GET", "/translator/translation", {}, None),
    "unload what is not there": ("GET", "/translator/unload_model/4", {}, None),
    "move to no GPU": ("GET", f"/translator/to_gpu/{MODEL_ID}", {}, None),
    "clone a file": (
        "POST", f"/translator/clone_model/{MODEL_ID}", JSON, json.dumps({"opt": {"models": ["/etc/passwd"]}}),
    ),
    "log to a file": (
        "POST", f"/translator/clone_model/{MODEL_ID}", JSON, json.dumps({"opt": {"log_file": "/nowhere/log"}}),
    ),
    "clone what is not there": ("POST", "/translator/clone_model/4", JSON, "{}"),
}  # fmt: skip


class Figures:
    """What the clients saw."""

    def __init__(self):
        self.counts = collections.Counter()
        self.seconds = []
        self.examples = []
        self._lock = threading.Lock()

    def count(self, kind, right, seconds, body, example):
        with self._lock:
            self.counts[kind] += 1
            self.counts["tracebacks"] += "Traceback" in body or 'File "' in body
            if kind == "good":
                self.seconds.append(seconds)
            if not right:
                self.counts[f"{kind}, wrong"] += 1
                self.examples.append(f"{example}: {body[:300]}")


def run(model_path, source_lines, clients=50, seconds=60, seed=1):
    """Start a server, have clients ask it for so long, stop it; returns figures by name."""
    cases = good_requests(model_path, source_lines, random.Random(seed))
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory, serving(model_path, directory) as (process, port):
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=client, args=(port, cases, end, random.Random(f"{seed} {n}"), figures))
            for n in range(clients)
        ]
        for thread in threads:
            thread.start()
        memory = []
        for _ in range(MEMORY_SAMPLES):
            time.sleep(seconds / MEMORY_SAMPLES)
            memory.append(round(resident_bytes(process.pid) / 2**20, 1))
        for thread in threads:
            thread.join()
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(timeout=60)
        log = Path(directory, "log").read_text("utf-8")
    latencies = statistics.quantiles(figures.seconds, n=20) if len(figures.seconds) > 1 else [0.0] * 19
    return {
        "clients": clients,
        "seconds": seconds,
        "good requests": figures.counts["good"],
        "good requests answered wrong": figures.counts["good, wrong"],
        "bad requests": figures.counts["bad"],
        "bad requests without 4xx and message": figures.counts["bad, wrong"],
        "tracebacks seen by clients": figures.counts["tracebacks"],
        "memory after warm-up, MiB": memory[0],
        "memory at the end, MiB": memory[-1],
        "memory on the way, MiB": memory,
        "median latency, ms": round(1000 * latencies[9], 1),
        "95th percentile latency, ms": round(1000 * latencies[18], 1),
        "exit code": exit_code,
        "last line": log.rstrip().rsplit("\n", 1)[-1],
        "examples of what went wrong": figures.examples[:5],
    }


def problems(figures):
    """What is not as it should be, a sentence each."""
    zero = ("good requests answered wrong", "bad requests without 4xx and message")
    found = [f"{name}: {figures[name]}" for name in (*zero, "tracebacks seen by clients") if figures[name]]
    found += [f"no {name}" for name in ("good requests", "bad requests") if not figures[name]]
    if figures["memory at the end, MiB"] > MOST_GROWTH * figures["memory after warm-up, MiB"]:
        found.append("memory has grown")
    if figures["exit code"] != 0 or not figures["last line"].endswith("stopped"):
        found.append(f"the server ended with {figures['exit code']}: {figures['last line']}")
    return found


def good_requests(model_path, source_lines, rng, number=60):
    """Lists of sentences, each with the list of their translations."""
    import onmt_varattn

    lines = [line.strip()[:400] for line in source_lines if line.strip()]
    odd = [
        "",
        " \t ",
        "a\nb",
        "nul \0 and bell \a",
        UNKNOWN,
        f"{rng.choice(lines)} {UNKNOWN}",
        "<s> </s> <blank>",
    ]
    cases = [[text] for text in odd]
    cases += [rng.choices([*lines, *odd], k=rng.randint(1, 4)) for _ in range(number)]
    model = onmt_varattn.load(model_path, **OPTIONS)
    return [(case, model.translate(case)) for case in cases]


@contextlib.contextmanager
def serving(model_path, directory, more=(), start=("-m", "onmt_varattn.bin.server"), entry=()):
    """A server in a process of its own: the process and its port.

    Args:
        model_path: a checkpoint.
        directory: where its configuration and its log go.
        more: options.
        start: how Python starts it.
        entry: more keys of the model in the configuration.
    """
    served = {"id": MODEL_ID, "model": str(Path(model_path).resolve()), "load": True, "opt": OPTIONS}
    Path(directory, "conf.json").write_text(json.dumps({"models": [{**served, **dict(entry)}]}))
    words = [sys.executable, *start, "-port", "0", "-config", "conf.json"]
    words += [word for name, most in LIMITS.items() for word in (f"-{name}", str(most))]
    words += more
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with open(Path(directory, "log"), "w") as log:
        process = subprocess.Popen(
            words, cwd=directory, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log
        )
    try:
        yield process, _port(process, Path(directory, "log"))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _port(process, log, patience=120):
    """The port, once the server says that it serves."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if found := re.search(r"Serving at http://127\.0\.0\.1:(\d+)/translator", log.read_text("utf-8")):
            return int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start:\n{log.read_text('utf-8')}")


def resident_bytes(pid):
    """The memory of a process that is in RAM."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


def client(port, cases, end, rng, figures):
    """Ask, one request after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    while time.monotonic() < end:
        bad = rng.random() < BAD_SHARE
        name, request, right = _bad(rng) if bad else _good(cases, rng)
        start = time.perf_counter()
        try:
            method, path, headers, body = request
            connection.request(method, path, body.encode() if isinstance(body, str) else body, headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            status, text = 0, f"no answer: {error!r}"
        seconds = time.perf_counter() - start
        figures.count("bad" if bad else "good", right(status, text), seconds, text, f"{name} ({status})")
    connection.close()


def _bad(rng):
    name = rng.choice(list(BAD))

    def right(status, text):
        return 400 <= status < 500 and (message := _json(text)) is not None and _is_error(message)

    return name, BAD[name], right


def _is_error(message):
    return message.keys() == {"status", "error"} and message["status"] == "error" and bool(message["error"])


def _good(cases, rng):
    case, translations = rng.choice(cases)
    unknown = "".join(chr(rng.randint(0xE000, 0xF8FF)) for _ in UNKNOWN)
    sources = [source.replace(UNKNOWN, unknown) for source in case]
    body = json.dumps([{"src": source, "id": MODEL_ID} for source in sources])

    def right(status, text):
        answer = _json(text)
        return (
            status == 200
            and [item["tgt"] for item in answer[0]] == translations
            and [item["src"] for item in answer[0]] == sources
        )

    return f"{sources}, right: {translations}", ("POST", TRANSLATE, JSON, body), right


def _json(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-model", required=True, help="a checkpoint")
    parser.add_argument("-src", required=True, help="source sentences, one a line")
    parser.add_argument("-clients", type=int, default=50)
    parser.add_argument("-seconds", type=float, default=60)
    opt = parser.parse_args()
    lines = Path(opt.src).read_text("utf-8").split("\n")
    figures = run(opt.model, lines, opt.clients, opt.seconds)
    print(json.dumps(figures, indent=1, ensure_ascii=False))
    for problem in (found := problems(figures)):
        print(f"PROBLEM: {problem}", file=sys.stderr)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
