"""Which broker this is and whether it serves, under ``/v1``."""

from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.routing import Route

from penstock import __version__
from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.routing import Call, CallDoc, route
from penstock.gateways.http.v1.models import Status, Version

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

TAG: Final = "v1: node"
_UNKNOWN_COMMIT: Final = "unknown"


class _VcsInfo(msgspec.Struct, frozen=True):
    commit_id: str


class _DirectUrl(msgspec.Struct, frozen=True):
    """What an installer notes about a package that came from a repository (PEP 610)."""

    vcs_info: _VcsInfo


@cache
def commit() -> str:
    """The commit this package was installed from, as far as its installer noted it."""
    try:
        note = metadata.distribution("penstock").read_text("direct_url.json")
        return msgspec.json.decode(note or b"", type=_DirectUrl).vcs_info.commit_id
    except (metadata.PackageNotFoundError, OSError, msgspec.MsgspecError):
        return _UNKNOWN_COMMIT


async def _healthz(_: Call) -> Answer:
    return json_answer(Status("ok"))


async def _version(_: Call) -> Answer:
    return json_answer(Version(__version__, commit(), wal_enabled=True))


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /v1/healthz and /v1/version."""
    return [
        route(
            gateway, "GET", "/v1/healthz", _healthz, CallDoc(TAG, "Check whether the broker is healthy", {200: Status})
        ),
        route(gateway, "GET", "/v1/version", _version, CallDoc(TAG, "Show the version", {200: Version})),
    ]
