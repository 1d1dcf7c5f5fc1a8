"""Many clients at a real server at once, with good and bad requests mixed, and hostile ones among them.

    python -m tests.faults.server_load -model model.pt -src lines.txt -clients 50 -hostile 20 -seconds 60

Every good request is compared with a translation made beforehand without a server, every bad one
must get a 4xx and a message. Hostile clients try all attacks that have worked on an earlier version,
and must get what the table says. Linux only: the server's memory is read from /proc.
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
import socket
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
LIMITS = {"max_request_bytes": 200_000, "max_sentences": 8, "max_characters": 500, "max_seconds": 2}
BAD_SHARE = 0.3  # of all requests
MEMORY_SAMPLES = 6  # evenly over the time; the first ends the warm-up
MOST_GROWTH = 1.1  # of memory, after the warm-up
MOST_SECONDS_TO_STOP = 10
KINDS = "hostile requests by kind and status"
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
    "an unknown id": ("POST", TRANSLATE, JSON, one(id=99)),
    "two ids": ("POST", TRANSLATE, JSON, json.dumps([{"src": "a", "id": 3}, {"src": "a", "id": 4}])),
    "features": ("POST", TRANSLATE, JSON, one(src_feats={"case": "1"})),
    "a ref that is a list": ("POST", TRANSLATE, JSON, one(ref=["a"])),
    "too many sentences": ("POST", TRANSLATE, JSON, json.dumps([{"src": "a", "id": MODEL_ID}] * 9)),
    "too long a sentence": ("POST", TRANSLATE, JSON, one(src="a " * 251)),
    "too large a request": ("POST", TRANSLATE, JSON, one(src="a" * 300_000)),
    "another method": ("GET", TRANSLATE, {}, None),
    "another path": ("GET", "/translator/translation", {}, None),
    "unload what is not there": ("POST", "/translator/unload_model/99", JSON, ""),
    "move to no GPU": ("POST", f"/translator/to_gpu/{MODEL_ID}", JSON, ""),
    "clone a file": (
        "POST", f"/translator/clone_model/{MODEL_ID}", JSON, json.dumps({"opt": {"models": ["/etc/passwd"]}}),
    ),
    "log to a file": (
        "POST", f"/translator/clone_model/{MODEL_ID}", JSON, json.dumps({"opt": {"log_file": "/nowhere/log"}}),
    ),
    "clone what is not there": ("POST", "/translator/clone_model/99", JSON, "{}"),
}  # fmt: skip

CLONE = f"/translator/clone_model/{MODEL_ID}"
UNLOAD = f"/translator/unload_model/{MODEL_ID}"
WIDE = {"beam": 50, "min_length": 1000, "max_length": 1000}
CLONES = range(MODEL_ID + 1, MODEL_ID + 5)  # the ids that -max_clones allows


def option(**given):
    return json.dumps({"opt": given})


# What hostile clients try: method, path, headers, body, and the statuses that it may get.
HOSTILE = {
    "an option in an option": ("POST", CLONE, JSON, option(replace_unk="-save_config=witness"), {400}),
    "a file in an option": ("POST", CLONE, JSON, option(alpha="--config=witness"), {400}),
    "help in an option": ("POST", CLONE, JSON, option(replace_unk="-h"), {400}),
    "an option of the command line": ("POST", CLONE, JSON, option(save_config="witness"), {400}),
    "another name for the server": ("POST", TRANSLATE, {**JSON, "Host": "evil.example"}, one(), {403}),
    "unload under another name": ("POST", UNLOAD, {**JSON, "Host": "evil.example:5000"}, "", {403}),
    "a page of another site": ("POST", UNLOAD, {**JSON, "Origin": "http://evil.example"}, "", {403}),
    "a link on another site": ("GET", "/translator/models", {"Sec-Fetch-Site": "cross-site"}, None, {403}),
    "a form on another site": ("POST", UNLOAD, {"Content-Type": "text/plain"}, "", {415}),
    "a browser's question": ("OPTIONS", UNLOAD, {}, None, {405}),
    "unload by GET": ("GET", UNLOAD, {}, None, {405}),
    "move by GET": ("GET", f"/translator/to_cpu/{MODEL_ID}", {}, None, {405}),
    "clone by GET": ("GET", CLONE, {}, None, {405}),
    "too wide a beam": ("POST", CLONE, JSON, option(beam=51), {400}),
    "a wide and long clone": ("POST", CLONE, JSON, option(**WIDE), {200, 403}),
    "too costly a request": (
        "POST", TRANSLATE, JSON, json.dumps([{"src": "a b " * 125, "id": CLONES[0]}] * 8), {413},
    ),
    "a request that takes long": (
        "POST", TRANSLATE, JSON, json.dumps([{"src": "a b " * 40, "id": CLONES[0]}]), {200, 503},
    ),
}  # fmt: skip
LONG = "a request that takes long"
SLOWLY = [
    b"",
    b"GET /translator/models HT",
    b"POST /translator/translate HTTP/1.1\r\nHost: localhost\r\nX-Long: 1",
    b"POST /translator/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n[",
]
SLOW_CONNECTIONS = 10  # of each hostile client


class Figures:
    """What the clients saw."""

    def __init__(self):
        self.counts = collections.Counter()
        self.seconds = []
        self.examples = []
        self.by_kind = collections.defaultdict(collections.Counter)  # statuses of hostile requests
        self._lock = threading.Lock()

    def count_hostile(self, kind, status):
        with self._lock:
            self.by_kind[kind][status] += 1

    def count(self, kind, right, seconds, body, example):
        with self._lock:
            self.counts[kind] += 1
            self.counts["tracebacks"] += "Traceback" in body or 'File "' in body
            if kind == "good":
                self.seconds.append(seconds)
            if not right:
                self.counts[f"{kind}, wrong"] += 1
                self.examples.append(f"{example}: {body[:300]}")


def run(model_path, source_lines, clients=50, seconds=60, seed=1, hostile=0):
    """Start a server, have clients ask it for so long, stop it; returns figures by name."""
    cases = good_requests(model_path, source_lines, random.Random(seed))
    figures = Figures()
    with tempfile.TemporaryDirectory() as directory, serving(model_path, directory) as (process, port):
        if hostile:  # all of them once, so that memory for the largest request is there after the warm-up
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
                for name in HOSTILE:
                    attack(connection, name, figures)
        end, long = time.monotonic() + seconds, threading.Semaphore(2)
        threads = [
            threading.Thread(target=client, args=(port, cases, end, random.Random(f"{seed} {n}"), figures))
            for n in range(clients)
        ]
        threads += [
            threading.Thread(
                target=hostile_client, args=(port, end, random.Random(f"hostile {seed} {n}"), figures, long)
            )
            for n in range(hostile)
        ]
        for thread in threads:
            thread.start()
        memory = []
        for _ in range(MEMORY_SAMPLES):
            time.sleep(seconds / MEMORY_SAMPLES)
            memory.append(round(resident_bytes(process.pid) / 2**20, 1))
        for thread in threads:
            thread.join()
        stopping = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            exit_code = process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            exit_code = "no end"
        stopping = time.monotonic() - stopping
        written = sorted({path.name for path in Path(directory).iterdir()} - {"conf.json", "log"})
        log = Path(directory, "log").read_text("utf-8")
    latencies = statistics.quantiles(figures.seconds, n=20) if len(figures.seconds) > 1 else [0.0] * 19
    return {
        "clients": clients,
        "seconds": seconds,
        "good requests": figures.counts["good"],
        "good requests answered wrong": figures.counts["good, wrong"],
        "bad requests": figures.counts["bad"],
        "bad requests without 4xx and message": figures.counts["bad, wrong"],
        "hostile clients": hostile,
        "hostile requests": figures.counts["hostile"],
        "hostile requests answered wrong": figures.counts["hostile, wrong"],
        KINDS: {kind: dict(statuses) for kind, statuses in sorted(figures.by_kind.items())},
        "slow connections": figures.counts["slow connections"],
        "files written by attacks": written,
        "tracebacks seen by clients": figures.counts["tracebacks"],
        "memory after warm-up, MiB": memory[0],
        "memory at the end, MiB": memory[-1],
        "memory on the way, MiB": memory,
        "median latency, ms": round(1000 * latencies[9], 1),
        "95th percentile latency, ms": round(1000 * latencies[18], 1),
        "seconds to stop": round(stopping, 1),
        "exit code": exit_code,
        "last line": log.rstrip().rsplit("\n", 1)[-1],
        "examples of what went wrong": figures.examples[:5],
    }


def problems(figures):
    """What is not as it should be, a sentence each."""
    zero = (
        "good requests answered wrong",
        "bad requests without 4xx and message",
        "hostile requests answered wrong",
        "files written by attacks",
        "tracebacks seen by clients",
    )
    found = [f"{name}: {figures[name]}" for name in zero if figures[name]]
    found += [f"no {name}" for name in ("good requests", "bad requests") if not figures[name]]
    if figures["seconds to stop"] > MOST_SECONDS_TO_STOP:
        found.append(f"the server took {figures['seconds to stop']} s to stop")
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
def serving(model_path, directory, more=(), start=("-m", "onmt_varattn.bin.nmt.server"), entry=()):
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
        status, text = _answer(connection, *request)
        seconds = time.perf_counter() - start
        figures.count("bad" if bad else "good", right(status, text), seconds, text, f"{name} ({status})")
    connection.close()


def hostile_client(port, end, rng, figures, long):
    """Try all attacks, and hold connections open on the way.

    Args:
        port: of the server.
        end: when to stop.
        rng: random numbers.
        figures: what was seen.
        long: a semaphore; so many requests that take as long as they may are sent at once.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    slow = [slow_connection(port, n, figures) for n in range(SLOW_CONNECTIONS)]
    while time.monotonic() < end:
        name = rng.choice(list(HOSTILE))
        if name != LONG:
            attack(connection, name, figures)
        elif long.acquire(blocking=False):
            attack(connection, name, figures)
            long.release()
        n = rng.randrange(SLOW_CONNECTIONS)
        try:
            slow[n].sendall(b"1")  # never enough for a request
        except OSError:  # the server has had enough of it
            slow[n].close()
            slow[n] = slow_connection(port, n, figures)
        time.sleep(rng.random() / 10)  # or they would do nothing but keep two cores busy
    for one_connection in (connection, *slow):
        one_connection.close()


def slow_connection(port, n, figures):
    """A connection that sends part of a request."""
    slow = socket.create_connection(("127.0.0.1", port), timeout=120)
    slow.sendall(SLOWLY[n % len(SLOWLY)])
    figures.count("slow connections", True, 0, "", "")
    return slow


def attack(connection, name, figures):
    """Send a hostile request, and see what comes of it."""
    *request, statuses = HOSTILE[name]
    status, text = _answer(connection, *request)
    message = _json(text)
    right = status in statuses and message is not None and (status == 200 or _is_error(message))
    figures.count("hostile", right, 0, text, f"{name} ({status})")
    figures.count_hostile(name, status)


def _answer(connection, method, path, headers, body):
    """Status and text; status 0 for none."""
    try:
        connection.request(method, path, body.encode() if isinstance(body, str) else body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return 0, f"no answer: {error!r}"


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
    parser.add_argument("-hostile", type=int, default=20, help="hostile clients, besides")
    parser.add_argument("-seconds", type=float, default=60)
    opt = parser.parse_args()
    lines = Path(opt.src).read_text("utf-8").split("\n")
    figures = run(opt.model, lines, opt.clients, opt.seconds, hostile=opt.hostile)
    print(json.dumps(figures, indent=1, ensure_ascii=False))
    for problem in (found := problems(figures)):
        print(f"PROBLEM: {problem}", file=sys.stderr)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
