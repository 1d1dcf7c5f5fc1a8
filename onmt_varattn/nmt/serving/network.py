"""The socket, and waitress as HTTP server with limits and with errors in JSON."""

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

# A body is read and discarded up to this multiple of the limit, so that its sender can read the response.
READ_BEYOND = 4

# Until a request has arrived completely, a connection costs little more than a socket. So there may be many,
# and those that send nothing, or slowly, are closed in favour of new ones.
CONNECTIONS = 1000
HEADROOM = 8  # connections below waitress' own limit, at which it accepts no more, where closing starts
OTHER_FILES = 64  # file descriptors reserved for other uses than connections
ARRIVAL_SECONDS = 30  # time limit for a request to arrive, from the connection or the previous response
SPARE_THREADS = 8  # threads for requests that need no model, while all clients wait in the queue
HEADER_BYTES = 16_384
BYTES_IN_MEMORY = 65_536  # of an arriving request; the rest is in a temporary file


def bind(ip: str, port: int) -> socket.socket:
    """Bind a socket, which does not listen yet.

    Raises:
        UserError: this machine does not have the address, or the port is in use.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise UserError(f"-ip {ip} is not an address of this machine; use 127.0.0.1") from None
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
    """Whether a socket can be reached from this machine only."""
    return ipaddress.ip_address(bound.getsockname()[0].split("%")[0]).is_loopback


def address(bound: socket.socket) -> str:
    """Address and port of a socket as in a URL."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _JsonErrorTask(ErrorTask):
    """The response to a request that is not HTTP, or too large to be read."""

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
        self.waiting_since = time.monotonic()  # for the next complete request
        super().__init__(*args, **kwargs)

    def service(self) -> None:
        self.waiting_since = math.inf  # waitress removes the request from its list before the response
        super().service()
        self.waiting_since = time.monotonic()

    @property
    def waits(self) -> bool:
        """Whether there is no complete request: the client is idle, or sends or reads slowly."""
        return not self.requests and not self.will_close


class _Server(TcpWSGIServer):
    """waitress' server, except that slow and idle clients cannot occupy all connections.

    Args:
        app: the application.
        bound: the socket.
        adjustments: waitress' settings.
    """

    channel_class = _Channel

    def __init__(self, app: Flask, bound: socket.socket, adjustments: Adjustments) -> None:
        info = (bound.family, bound.type, bound.proto, bound.getsockname())
        super().__init__(app, _sock=bound, adj=adjustments, bind_socket=False, sockinfo=info)

    def readable(self) -> bool:
        """Whether to accept a connection; called in every iteration of waitress' loop."""
        if len(self._map) >= self.adj.connection_limit - HEADROOM:
            waiting = [channel for channel in self.active_channels.values() if channel.waits]
            if waiting:
                min(waiting, key=lambda channel: channel.waiting_since).will_close = True
        return super().readable()

    def maintenance(self, now: float) -> None:
        """Close connections whose request takes too long to arrive, even if they keep sending bytes."""
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
    """Build an HTTP server that listens; its `run` serves until it is interrupted.

    Args:
        app: the application.
        bound: socket from `bind`.
        clients: length of the queue of requests.
        request_bytes: size limit of a request in the application.
        connections: number of open connections; beyond that, an idle one is closed for each new one.
        arrival_seconds: time limit for a request to arrive.

    Raises:
        UserError: another program has taken the port since `bind`.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY:
        connections = min(connections, files - OTHER_FILES)
    adjustments = Adjustments(
        sockets=[bound],
        threads=clients + SPARE_THREADS,
        connection_limit=max(connections, clients) + 2 + HEADROOM,  # waitress has two sockets itself
        max_request_body_size=READ_BEYOND * request_bytes + 1,
        max_request_header_size=HEADER_BYTES,
        inbuf_overflow=BYTES_IN_MEMORY,
        channel_timeout=arrival_seconds,
        cleanup_interval=1,
        asyncore_use_poll=True,  # select() is limited to 1,024 files
    )
    try:
        return _Server(app, bound, adjustments)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _unusable(host, port, error) from None
