"""onmt_server: translation over HTTP, with OpenNMT's routes and answers."""

import contextlib
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from onmt.utils.logging import init_logger

from onmt_varattn.cli import Parser, run
from onmt_varattn.errors import UserError
from onmt_varattn.plugin import register

logger = logging.getLogger(__name__)


def server_parser() -> Parser:
    """All options of onmt_server: OpenNMT's, and limits."""
    parser = Parser(description="Serve translation models over HTTP.")
    parser.add(
        "-ip", "--ip", default="127.0.0.1",
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
        "-max_clients", "--max_clients", type=int, default=100,
        help="Connections served at once; others wait to be accepted.",
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
    from onmt_varattn.serving.app import build_app
    from onmt_varattn.serving.config import read_config
    from onmt_varattn.serving.models import Models
    from onmt_varattn.serving.network import address, bind, http_server, is_loopback
    from onmt_varattn.serving.requests import Limits

    configs = read_config(opt.config)
    init_logger()
    limits = Limits(
        opt.max_request_bytes, opt.max_sentences, opt.max_characters, opt.max_wait, opt.max_clones
    )
    with bind(opt.ip, opt.port) as bound, terminated_as_interrupted():
        models = Models(limits)
        try:
            for config in configs:
                models.add(config)
            app = build_app(models, opt.url_root, opt.debug)
            server = http_server(app, bound, opt.max_clients, opt.max_request_bytes)
            if not is_loopback(bound):
                logger.warning("Everyone who reaches %s can translate, and unload models.", address(bound))
            logger.info("Serving at http://%s/%s", address(bound), opt.url_root.strip("./"))
            server.run()
        finally:
            models.close()
    print("onmt_server: stopped", file=sys.stderr)


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_server(opt: Any) -> None:
    """Refuse limits that nothing can keep.

    Raises:
        UserError: one sentence that names the option and what to use.
    """
    for name in ("max_request_bytes", "max_sentences", "max_characters", "max_clients"):
        if getattr(opt, name) < 1:
            raise UserError(f"-{name} {getattr(opt, name)} must be at least 1")
    if opt.max_clones < 0:
        raise UserError(f"-max_clones {opt.max_clones} must not be negative; 0 is for none")
    if not opt.max_wait > 0:
        raise UserError(f"-max_wait {opt.max_wait} must be more than 0 seconds")


if __name__ == "__main__":
    main()
