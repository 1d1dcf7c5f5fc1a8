"""Access control by the host name of a request, its origin, and a token.

A web page can make the browser of its visitor send requests to any address and, with a host name of its own
(DNS rebinding), read the responses. But the browser sends the host name (Host) and the page's origin
(Origin, Sec-Fetch-Site) in headers that a page cannot change.
"""

import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from werkzeug.datastructures import Headers

from onmt_varattn.errors import UserError
from onmt_varattn.nmt.serving.requests import RequestError

LEAST_TOKEN = 16  # characters
OWN_SITES = ("same-origin", "none")  # none: typed into the address bar

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@,\s]+)(?::\d{1,5})?", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9_-]*[a-z0-9])?)*", re.ASCII)


@dataclass(frozen=True)
class Access:
    """Which requests are answered.

    Args:
        hosts: names and addresses of this server, besides localhost and loopback addresses.
        any_address: accept any IP address as host. This is safe: unlike a name, an address cannot be
            redirected by the page.
        token: secret that clients must send, default: none.
    """

    hosts: frozenset[str] = frozenset()
    any_address: bool = False
    token: str | None = None

    @classmethod
    def of(cls, listening: Sequence[str], names: Sequence[str] = (), token: str | None = None) -> "Access":
        """Access to a server that listens on an address.

        Args:
            listening: that address, as given by the user and as resolved.
            names: other names of the server.
            token: secret that clients must send, default: none.

        Raises:
            UserError: a name is not a host name or an address.
        """
        hosts = frozenset([*map(_normal, listening), *map(_checked, names)])
        everywhere = any(
            address is not None and address.is_unspecified for address in map(_address, listening)
        )
        return cls(hosts, everywhere, token)

    def check(self, headers: Headers) -> None:
        """Refuse requests that a page of another site may have sent.

        Raises:
            RequestError: status 403, names the header.
        """
        host = headers.get("Host", "").lower()
        if not self._is_own(host):
            raise RequestError(
                403, "the header 'Host' names another server; start this one with -allowed_host NAME"
            )
        origin = headers.get("Origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise RequestError(
                403, "the header 'Origin' names another site; only pages of this server are answered"
            )
        if headers.get("Sec-Fetch-Site", "none") not in OWN_SITES:
            raise RequestError(403, "the header 'Sec-Fetch-Site' is that of another site's page")

    def check_token(self, headers: Headers) -> None:
        """Refuse requests without the token.

        Raises:
            RequestError: status 401.
        """
        if self.token is None:
            return
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self.token.encode())
        if scheme.lower() != "bearer" or not right:
            raise RequestError(
                401,
                "send the token of the server, with the header 'Authorization: Bearer TOKEN'",
                {"WWW-Authenticate": "Bearer"},
            )

    def _is_own(self, host: str) -> bool:
        matched = _HOST.fullmatch(host)
        if matched is None:
            return False
        name = matched[1].strip("[]").removesuffix(".")
        address = _address(name)
        if address is None:
            return name == "localhost" or name in self.hosts
        return address.is_loopback or self.any_address or str(address) in self.hosts


def read_token(path: str) -> str:
    """Read the token from a file of one line.

    Raises:
        UserError: the file has no token of sufficient length. The message does not contain the token.
    """
    try:
        with open(path, encoding="ascii") as file:
            lines = file.read(10_000).splitlines()
    except OSError as error:
        raise UserError(f"-token_file {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        lines = []
    if len(lines) != 1 or len(lines[0]) < LEAST_TOKEN or not re.fullmatch(r"[!-~]+", lines[0]):
        raise UserError(
            f"-token_file {path}: must hold one line of at least {LEAST_TOKEN} characters, without spaces; "
            "openssl rand -hex 32 makes one"
        )
    return lines[0]


def _checked(name: str) -> str:
    normal = _normal(name)
    if _address(normal) is None and not _NAME.fullmatch(normal):
        raise UserError(f"-allowed_host {name} is not a name or an address such as translate.example.org")
    return normal


def _normal(name: str) -> str:
    """A name in lower case, or an address in Python's notation."""
    return str(_address(name) or name.lower())


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
