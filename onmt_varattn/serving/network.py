"""The socket and the HTTP server, waitress, with our limits and errors in JSON."""

import errno
import ipaddress
import json
import socket
from typing import Any

from flask import Flask
from waitress.channel import HTTPChannel
from waitress.server import create_server
from waitress.task import ErrorTask

from onmt_varattn.errors import UserError

# A body beyond the limit is read so far, and thrown away, so that its sender gets to read the answer.
READ_BEYOND = 16


def bind(ip: str, port: int) -> socket.socket:
    """A socket that is ours but does not listen yet.

    Raises:
        UserError: the address is none of this machine, or its port is taken.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"-port {port} is not between 0 and 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise UserError(f"-ip {ip} is not an address of this machine; 127.0.0.1 is") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _unusable(ip, port, error) from None
    return bound


def _unusable(ip: str, port: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(f"-port {port} of {ip} is in use by another program; choose another -port")
    return UserError(f"-ip {ip} -port {port}: cannot be listened on: {error.strerror}")


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach a socket."""
    return ipaddress.ip_address(bound.getsockname()[0].split("%")[0]).is_loopback


def address(bound: socket.socket) -> str:
    """A socket's address and port as in a URL."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _JsonErrorTask(ErrorTask):
    """What is wrong with a request that is no HTTP, or too large to be read."""

    def execute(self) -> None:
        error = self.request.error
        message = "the request has too many bytes" if error.code == 413 else f"{error.reason}: {error.body}"
        body = json.dumps({"status": "error", "error": message}).encode()
        self.status = f"{error.code} {error.reason}"
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Channel(HTTPChannel):
    error_task_class = _JsonErrorTask


def http_server(app: Flask, bound: socket.socket, clients: int, request_bytes: int) -> Any:
    """An HTTP server that listens; its `run` serves until it is interrupted.

    Args:
        app: what answers.
        bound: as `bind` made it.
        clients: connections served at once; others wait.
        request_bytes: the application's own limit on the body of a request.

    Raises:
        UserError: another program took the port in the meantime.
    """
    try:
        server = create_server(
            app,
            sockets=[bound],
            threads=clients,  # as many as connections, so that none waits for another's translation
            connection_limit=clients + 2,  # waitress counts two sockets of its own
            max_request_body_size=READ_BEYOND * request_bytes + 1,
        )
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _unusable(host, port, error) from None
    server.channel_class = _Channel
    return server
