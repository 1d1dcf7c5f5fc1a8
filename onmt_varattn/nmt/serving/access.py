"""Who may ask: by the name that a request has for this server, its origin, and a token.

A web page can have its visitor's browser send requests to any address, and under a name of its own
(DNS rebinding) read the answers. But a browser says which name it used (Host) and which page asks
(Origin, Sec-Fetch-Site), and a page cannot change that.
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
OWN_SITES = ("same-origin", "none")  # none: typed by the user

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/@,\s]+)(?::\d{1,5})?", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9_-]*[a-z0-9])?)*", re.ASCII)


@dataclass(frozen=True)
class Access:
    """Which requests are answered.

    Args:
        hosts: names and addresses of this server, besides those of the machine itself.
        any_address: answer to every IP address in place of a name. Not less safe: an address, unlike
            a name, is the same for all.
        token: what clients must send; None if they need not.
    """

    hosts: frozenset[str] = frozenset()
    any_address: bool = False
    token: str | None = None

    @classmethod
    def of(cls, listening: Sequence[str], names: Sequence[str] = (), token: str | None = None) -> "Access":
        """For a server that listens on an address.

        Args:
            listening: that address, as it was given and as it was found.
            names: other names that clients have for the server.
            token: what they must send.

        Raises:
            UserError: a name is none.
        """
        hosts = frozenset([*map(_normal, listening), *map(_checked, names)])
        everywhere = any(
            address is not None and address.is_unspecified for address in map(_address, listening)
        )
        return cls(hosts, everywhere, token)

    def check(self, headers: Headers) -> None:
        """Refuse what a foreign web page may have sent.

        Raises:
            RequestError: it may.
        """
        host = headers.get("Host", "").lower()
        if not self._is_own(host):
            raise RequestError(
                403, "the header 'Host' names another server; start this one with -allowed_host NAME"
            )
        origin = headers.get("Origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            raise RequestError(403, "the header 'Origin' names another site, and only this one's is answered")
        if headers.get("Sec-Fetch-Site", "none") not in OWN_SITES:
            raise RequestError(403, "the header 'Sec-Fetch-Site' is that of another site's page")

    def check_token(self, headers: Headers) -> None:
        """Refuse who does not send the token.

        Raises:
            RequestError: they do not.
        """
        if self.token is None:
            return
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self.token.encode())
        if scheme.lower() != "bearer" or not right:
            raise RequestError(
                401,
                "send the server's token, with the header 'Authorization: Bearer TOKEN'",
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
    """The token that a file holds, as its only line.

    Raises:
        UserError: it holds none that is safe to use. The sentence does not tell the token.
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
        raise UserError(f"-allowed_host {name} is not a name or an address, as translate.example.org")
    return normal


def _normal(name: str) -> str:
    """A name in lower case; an address as Python writes it, for there are several ways."""
    return str(_address(name) or name.lower())


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
