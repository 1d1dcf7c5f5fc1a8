"""onmt_server: translation over HTTP, with OpenNMT's routes and answers."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.plugin import register
from onmt_varattn.utils.cli import FAILED, Parser, run, start_logging

if TYPE_CHECKING:
    from onmt_varattn.nmt.serving.requests import Limits

logger = logging.getLogger(__name__)

STOP_SECONDS = 9.0  # from a signal to the end of the process


def server_parser() -> Parser:
    """All options of onmt_server: OpenNMT's, and limits."""
    parser = Parser(description="Serve translation models over HTTP.")
    parser.add(
        "-ip", "--ip", "-host", "--host", default="127.0.0.1",
        help="Address to listen on. The default is for this machine alone; 0.0.0.0 is for all that reach it.",
    )  # fmt: skip
    parser.add("-port", "--port", type=int, default=5000, help="Port to listen on; 0 for any that is free.")
    parser.add("-url_root", "--url_root", default="/translator", help="Path before all routes.")
    parser.add(
        "-debug", "--debug", "-d", action="store_true", help="Log what clients send, and what they get."
    )
    parser.add(
        "-config", "--config", "-c", default="./available_models/conf.json", help="Models to serve (JSON)."
    )
    group = parser.add_argument_group("Access")
    group.add(
        "-allowed_host", "--allowed_host", nargs="+", default=[], metavar="NAME",
        help="Names that clients have for this server, besides localhost, -ip and (with 0.0.0.0) any "
        "address. Requests for others are refused (403): web pages of others may have sent them.",
    )  # fmt: skip
    group.add(
        "-token_file", "--token_file",
        help="File with one line, a secret that clients must send: 'Authorization: Bearer SECRET'. "
        "Others are refused (401).",
    )  # fmt: skip
    group = parser.add_argument_group("Limits")
    group.add(
        "-max_request_bytes", "--max_request_bytes", type=int, default=1_000_000,
        help="Bytes of a request; a larger one is refused (413).",
    )  # fmt: skip
    group.add(
        "-max_sentences", "--max_sentences", type=int, default=64,
        help="Sentences of a request; more are refused (413).",
    )  # fmt: skip
    group.add(
        "-max_characters", "--max_characters", type=int, default=2000,
        help="Characters of a sentence; a longer one is refused (413).",
    )  # fmt: skip
    group.add(
        "-max_wait", "--max_wait", type=float, default=60.0,
        help="Seconds that a request waits for its turn; after that it is refused (503).",
    )  # fmt: skip
    group.add(
        "-max_cost", "--max_cost", type=int, default=10_000_000,
        help="Characters x beam x max_length of a request, with at least 100 characters per sentence and a "
        "max_length of 100; a larger one is refused (413).",
    )  # fmt: skip
    group.add(
        "-max_seconds", "--max_seconds", type=float, default=60.0,
        help="Seconds that a request may take once its turn has come; after that it is stopped (503).",
    )  # fmt: skip
    group.add(
        "-max_clients", "--max_clients", type=int, default=100,
        help="Requests that wait for their turn at once; others are refused (503).",
    )  # fmt: skip
    group.add(
        "-max_clones", "--max_clones", type=int, default=4,
        help="Models that clients may add with clone_model; 0 for none.",
    )  # fmt: skip
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: serve(server_parser().parse_args(args)))


def serve(opt: Any) -> None:
    """Serve until interrupted."""
    check_server(opt)
    register()
    from onmt_varattn.nmt.serving.access import Access, read_token
    from onmt_varattn.nmt.serving.app import build_app
    from onmt_varattn.nmt.serving.config import read_config
    from onmt_varattn.nmt.serving.models import Models
    from onmt_varattn.nmt.serving.network import address, bind, http_server, is_loopback

    configs = read_config(opt.config)
    token = read_token(opt.token_file) if opt.token_file else None
    Access.of([opt.ip], opt.allowed_host)  # or refuse the names before the models are loaded
    start_logging()
    models = Models(limits_of(opt))
    with bind(opt.ip, opt.port) as bound, stopping_on_signals(models.turns.stop):
        try:
            for config in configs:
                models.add(config)
            access = Access.of([opt.ip, bound.getsockname()[0]], opt.allowed_host, token)
            app = build_app(models, opt.url_root, opt.debug, access)
            server = http_server(app, bound, opt.max_clients, opt.max_request_bytes)
            if not is_loopback(bound) and token is None:
                logger.warning("Everyone who reaches %s can translate, and unload models.", address(bound))
            logger.info("Serving at http://%s/%s", address(bound), opt.url_root.strip("./"))
            server.run()
        finally:
            models.close()
    print("onmt_server: stopped", file=sys.stderr)


def limits_of(opt: Any) -> "Limits":
    """The limits that the options set."""
    from onmt_varattn.nmt.serving.requests import Limits

    return Limits(
        request_bytes=opt.max_request_bytes,
        sentences=opt.max_sentences,
        characters=opt.max_characters,
        wait=opt.max_wait,
        clones=opt.max_clones,
        cost=opt.max_cost,
        seconds=opt.max_seconds,
        clients=opt.max_clients,
    )


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does: stop, within `STOP_SECONDS` whatever runs.

    Args:
        stop: called first. It takes no locks, for it may interrupt what holds them.
    """
    asked, done = threading.Event(), threading.Event()

    def give_up() -> None:
        asked.wait()
        if not done.wait(STOP_SECONDS):
            print("onmt_server: stopped, and gave up what did not end", file=sys.stderr, flush=True)
            os._exit(FAILED)

    def interrupt(*_: Any) -> None:
        asked.set()
        stop()
        raise KeyboardInterrupt

    threading.Thread(target=give_up, name="watchdog", daemon=True).start()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        done.set()
        asked.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def check_server(opt: Any) -> None:
    """Refuse limits that nothing can keep.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    for name in ("max_request_bytes", "max_sentences", "max_characters", "max_clients", "max_cost"):
        if getattr(opt, name) < 1:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least 1")
    if opt.max_clones < 0:
        raise UserError(f"-max_clones {opt.max_clones} must not be negative; 0 is for none")
    for name in ("max_wait", "max_seconds"):
        if not getattr(opt, name) > 0:
            raise UserError(f"-{name} {getattr(opt, name)} must be more than 0 seconds")


if __name__ == "__main__":
    main()
