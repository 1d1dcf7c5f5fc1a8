"""onmt_server: OpenNMT's REST server, for our models too."""

from collections.abc import Sequence

from onmt_varattn.cli import Parser, run
from onmt_varattn.errors import UserError
from onmt_varattn.plugin import register


def server_parser() -> Parser:
    """All options of onmt_server: OpenNMT's."""
    parser = Parser(description="Serve translation models over HTTP.")
    parser.add("-ip", "--ip", default="0.0.0.0", help="Address to listen on.")
    parser.add("-port", "--port", type=int, default=5000, help="Port to listen on.")
    parser.add("-url_root", "--url_root", default="/translator", help="Path before all routes.")
    parser.add("-debug", "--debug", "-d", action="store_true", help="Log requests.")
    parser.add(
        "-config", "--config", "-c", default="./available_models/conf.json", help="Models to serve (JSON)."
    )
    return parser


def main(args: Sequence[str] | None = None) -> None:
    """The command."""
    run(lambda: serve(args))


def serve(args: Sequence[str] | None = None) -> None:
    """Hand over to OpenNMT."""
    opt = server_parser().parse_args(args)
    register()
    import json

    import onmt.bin.server

    try:
        with open(opt.config, encoding="utf-8") as file:
            json.load(file)
    except OSError as error:
        raise UserError(f"{opt.config}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{opt.config}: not JSON: {error}") from None
    onmt.bin.server.start(opt.config, url_root=opt.url_root, host=opt.ip, port=opt.port, debug=opt.debug)


if __name__ == "__main__":
    main()
