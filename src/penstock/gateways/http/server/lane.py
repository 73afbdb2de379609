"""The requests that the fast lane takes: a table from the bytes of a request's head to its handler.

Clients that stay connected send the same head again and again, so each head is parsed once, by the strict parser that uvicorn uses,
and remembered. The lane takes plain requests only: a hot call, HTTP/1.1, kept alive, with a length and no transfer coding. All others
go to ASGI. A request that both could take gets the same bytes as its answer from both.

If clients must authenticate, the table has keyed digests instead of heads, because a head may contain a credential. An entry then has the
identity that the credential proves; the connection checks that it still holds. A head with a credential that is not known yet goes to
ASGI, which can wait for the answer.

Invariant: an entry depends only on the bytes of the head, on the routes and on the users, and there are at most ``HEADS_MAX`` entries
with heads of at most ``HEAD_BYTES_MAX`` bytes, and ``ALL_HEADS_BYTES_MAX`` in total.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httptools
from starlette.routing import Match, Route

from penstock.gateways.http.server.answers import NDJSON, RawHeaders, given_request_id
from penstock.gateways.http.server.logins import Login, without_credential
from penstock.gateways.http.server.routing import ApiRoute, HotHandler
from penstock.limits import KIB, MIB
from penstock.meters import Histogram

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

HEADS_MAX: Final = 4096
HEAD_BYTES_MAX: Final = 4 * KIB
"""Enough for a token with the usual claims."""
ALL_HEADS_BYTES_MAX: Final = 4 * MIB
_UNUSUAL: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"http2-settings"})


@dataclass(frozen=True, slots=True)
class LaneCall:
    """A head that the lane takes."""

    hot: HotHandler
    path: str
    params: Mapping[str, str]
    query: bytes
    headers: RawHeaders
    length: int
    request_id: bytes | None
    latency: Histogram
    is_large: bool
    login: Login | None
    """Whose credential the head has, if clients must authenticate and it has one."""


class _Head:
    """Collects the results of the parser."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: RawHeaders = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


class LaneTable:
    """The known heads, and how each is handled: by ASGI if None."""

    def __init__(self, gateway: "HttpGateway") -> None:
        self._gateway = gateway
        self.known: Final[dict[bytes, LaneCall | None]] = {}
        """By the head, or by its digest if clients must authenticate."""
        self._known_bytes = 0

    def look_up(self, head: bytes, key: bytes, *, is_stranger: bool) -> LaneCall | None:
        """How to handle a request with this head, which includes its empty line. A stranger is a client without a certificate."""
        found = self._read(head)
        if len(head) <= HEAD_BYTES_MAX and self._is_worth_remembering(found, is_stranger=is_stranger):
            self._known_bytes += len(head)
            if len(self.known) >= HEADS_MAX or self._known_bytes > ALL_HEADS_BYTES_MAX:
                self.known.clear()
                self._known_bytes = len(head)
            self.known[key] = found
        return found

    def _is_worth_remembering(self, found: LaneCall | None, *, is_stranger: bool) -> bool:
        if found is not None and found.request_id is not None:
            return False
        # Those who have not authenticated must not displace anything, and their credential may be known the next time.
        return not self._gateway.logins.is_required or (found is not None and not (is_stranger and found.login is None))

    def _read(self, head: bytes) -> LaneCall | None:
        if not self._gateway.bounds.fast_lane or len(head) > self._gateway.bounds.head_bytes_max:
            return None
        collected = _Head()
        parser = httptools.HttpRequestParser(collected)
        try:
            parser.feed_data(head)
            parsed = httptools.parse_url(collected.url)
            path = parsed.path.decode("ascii")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, UnicodeDecodeError, AttributeError):
            return None
        plain = (
            collected.complete
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and "%" not in path
            # A target with a host is rare.
            and collected.url.startswith(b"/")
            and self._gateway.guard.refusal("POST", path, collected.headers) is None
        )
        if not plain:
            return None
        length = _plain_length(collected.headers)
        if length is None or length > self._gateway.bounds.lane_body_bytes_max:
            return None
        headers, login = collected.headers, None
        if self._gateway.logins.is_required:
            login = self._gateway.logins.remembered(headers)
            headers = without_credential(headers)
            if login is None and len(headers) < len(collected.headers):
                return None
        for known in self._gateway.routes:
            found = self._match(known, path)
            if found is not None:
                if found.hot is None:
                    return None
                matched = found.path_regex.match(path)
                assert matched is not None
                return LaneCall(
                    found.hot,
                    path,
                    matched.groupdict(),
                    parsed.query or b"",
                    headers,
                    length,
                    given_request_id(headers),
                    found.latency,
                    found.is_large,
                    login,
                )
        return None

    @staticmethod
    def _match(known: Route, path: str) -> ApiRoute | None:
        scope = {"type": "http", "path": path, "method": "POST", "root_path": ""}
        return known if isinstance(known, ApiRoute) and known.matches(scope)[0] is Match.FULL else None


def _plain_length(headers: RawHeaders) -> int | None:
    """The length of the body, or None if its headers need ASGI."""
    lengths: list[bytes] = []
    for name, value in headers:
        if name in _UNUSUAL or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
        if name == b"content-type" and value.partition(b";")[0].strip().lower() == NDJSON:
            return None
        if name == b"content-length":
            lengths.append(value)
    if not lengths:
        return 0
    return int(lengths[0]) if len(lengths) == 1 and lengths[0].isdigit() and len(lengths[0]) < 12 else None
