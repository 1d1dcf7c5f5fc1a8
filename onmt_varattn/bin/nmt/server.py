"""onmt_server: translation over HTTP, with OpenNMT-py's routes and responses."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onmt_varattn.nmt.plugin import register
from onmt_varattn.nmt.serving.config import Limits, read_config
from onmt_varattn.utils.cli import FAILED, parse, run, start_logging
from onmt_varattn.utils.settings import setting

logger = logging.getLogger(__name__)

STOP_SECONDS = 9.0  # from a signal to the end of the process


@dataclass(kw_only=True)
class AccessSettings(Limits):
    """Access to the server."""

    title = "Access"

    allowed_host: list[str] = setting(
        [],
        metavar="NAME",
        help="Host names of this server in addition to localhost, -ip and (with 0.0.0.0) any address. "
        "Requests with other host names, which pages of other sites may have sent, get a 403.",
    )
    token_file: str | None = setting(
        None,
        help="File of one line, the token that clients must send ('Authorization: Bearer TOKEN'). Requests "
        "without it get a 401.",
    )


@dataclass(kw_only=True)
class ServerSettings(AccessSettings):
    """Settings of onmt_server: OpenNMT-py's, access and limits."""

    title = ""
    description = "Serve translation models over HTTP."

    ip: str = setting(
        "127.0.0.1",
        also=("host",),
        help="Address to listen on. The default serves this machine only, 0.0.0.0 all that can reach it.",
    )
    port: int = setting(5000, at_least=0, at_most=65535, help="Port to listen on, 0 for any free port.")
    url_root: str = setting("/translator", help="Prefix of all routes.")
    debug: bool = setting(False, also=("d",), help="Log the contents of requests and responses.")
    config: str = setting(
        "./available_models/conf.json", also=("c",), help="JSON file of the models to serve."
    )


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: serve(parse(ServerSettings, args)))


def serve(opt: ServerSettings) -> None:
    """Serve until interrupted."""
    register()
    from onmt_varattn.nmt.serving.access import Access, read_token
    from onmt_varattn.nmt.serving.app import build_app
    from onmt_varattn.nmt.serving.models import Models
    from onmt_varattn.nmt.serving.network import address, bind, http_server, is_loopback

    configs = read_config(opt.config)
    token = read_token(opt.token_file) if opt.token_file else None
    Access.of([opt.ip], opt.allowed_host)  # checks the names before the models are loaded
    start_logging()
    models = Models(opt)
    with bind(opt.ip, opt.port) as bound, stopping_on_signals(models.turns.stop):
        try:
            for config in configs:
                models.add(config)
            access = Access.of([opt.ip, bound.getsockname()[0]], opt.allowed_host, token)
            app = build_app(models, opt.url_root, opt.debug, access)
            server = http_server(app, bound, opt.clients, opt.request_bytes)
            if not is_loopback(bound) and token is None:
                logger.warning(
                    "No -token_file: everyone who can reach %s can translate, and unload models.",
                    address(bound),
                )
            logger.info("Serving at http://%s/%s", address(bound), opt.url_root.strip("./"))
            server.run()
        finally:
            models.close()
    print("onmt_server: stopped", file=sys.stderr)


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Stop on SIGTERM as on Ctrl-C, within `STOP_SECONDS` even if work does not end.

    Args:
        stop: function that is called first; without locks, since it may interrupt the code that holds them.
    """
    asked, done = threading.Event(), threading.Event()

    def watch() -> None:
        asked.wait()
        if not done.wait(STOP_SECONDS):
            print("onmt_server: stopped, aborting unfinished work", file=sys.stderr, flush=True)
            os._exit(FAILED)

    def interrupt(*_: Any) -> None:
        asked.set()
        stop()
        raise KeyboardInterrupt

    threading.Thread(target=watch, name="watchdog", daemon=True).start()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        done.set()
        asked.set()
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    main()
