"""The socket and the HTTP server, waitress, with our limits and errors in JSON."""

import errno
import ipaddress
import json
import math
import resource
import socket
import time
from typing import Any

from flask import Flask
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask

from onmt_varattn.errors import UserError

# A body beyond the limit is read so far, and thrown away, so that its sender gets to read the answer.
READ_BEYOND = 4

# Connections cost a socket and little else, until a request has come in as a whole. So there may be
# many, and those that send nothing, or slowly, are closed in favour of new ones.
CONNECTIONS = 1000
HEADROOM = 8  # connections between the first that makes way and waitress' own limit, where it accepts none
OTHER_FILES = 64  # that the process may need open besides, of those that the system allows it
ARRIVAL_SECONDS = 30  # for a request to come in, from the connection or the answer before
SPARE_THREADS = 8  # for what is answered without a turn, while all clients wait for theirs
HEADER_BYTES = 16_384
BYTES_IN_MEMORY = 65_536  # of a request that comes in; the rest of it is in a temporary file


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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.waiting_since = time.monotonic()  # for the next request as a whole
        super().__init__(*args, **kwargs)

    def service(self) -> None:
        self.waiting_since = math.inf  # the request is taken off the list before the answer is done
        super().service()
        self.waiting_since = time.monotonic()

    @property
    def waits(self) -> bool:
        """There is no request to be answered: it is idle, or sends one slowly, or reads slowly."""
        return not self.requests and not self.will_close


class _Server(TcpWSGIServer):
    """waitress' server, whose connections cannot all be taken by clients that send slowly or nothing.

    Args:
        app: what answers.
        bound: the socket.
        adjustments: waitress' settings.
    """

    channel_class = _Channel

    def __init__(self, app: Flask, bound: socket.socket, adjustments: Adjustments) -> None:
        info = (bound.family, bound.type, bound.proto, bound.getsockname())
        super().__init__(app, _sock=bound, adj=adjustments, bind_socket=False, sockinfo=info)

    def readable(self) -> bool:
        """Whether to accept a connection; called in each turn of waitress' loop."""
        if len(self._map) >= self.adj.connection_limit - HEADROOM:
            waiting = [channel for channel in self.active_channels.values() if channel.waits]
            if waiting:
                min(waiting, key=lambda channel: channel.waiting_since).will_close = True
        return super().readable()

    def maintenance(self, now: float) -> None:
        """Close connections that have had their time, however often they send a byte."""
        for channel in self.active_channels.values():
            if channel.waits and time.monotonic() - channel.waiting_since > self.adj.channel_timeout:
                channel.will_close = True


def http_server(
    app: Flask,
    bound: socket.socket,
    clients: int,
    request_bytes: int,
    connections: int = CONNECTIONS,
    arrival_seconds: int = ARRIVAL_SECONDS,
) -> Any:
    """An HTTP server that listens; its `run` serves until it is interrupted.

    Args:
        app: what answers.
        bound: as `bind` made it.
        clients: requests that wait for a translation at once.
        request_bytes: the application's own limit on the body of a request.
        connections: open at once; beyond that, one that waits is closed for each new one.
        arrival_seconds: for a request to come in.

    Raises:
        UserError: another program took the port in the meantime.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY:
        connections = min(connections, files - OTHER_FILES)
    adjustments = Adjustments(
        sockets=[bound],
        threads=clients + SPARE_THREADS,
        connection_limit=max(connections, clients) + 2 + HEADROOM,  # waitress counts two sockets of its own
        max_request_body_size=READ_BEYOND * request_bytes + 1,
        max_request_header_size=HEADER_BYTES,
        inbuf_overflow=BYTES_IN_MEMORY,
        channel_timeout=arrival_seconds,
        cleanup_interval=1,
        asyncore_use_poll=True,  # select() knows 1,024 files
    )
    try:
        return _Server(app, bound, adjustments)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _unusable(host, port, error) from None
