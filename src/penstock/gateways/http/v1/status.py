"""The version of the broker and whether it is healthy, under ``/v1``."""

from functools import cache
from importlib import metadata
from typing import Final

import msgspec

from penstock import __version__
from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall
from penstock.gateways.http.v1.models import Status, Version

CALLS: Final = ApiCalls("v1: node")
_UNKNOWN_COMMIT: Final = "unknown"


class _VcsInfo(msgspec.Struct, frozen=True):
    commit_id: str


class _DirectUrl(msgspec.Struct, frozen=True):
    """What an installer writes about a package from a repository (PEP 610)."""

    vcs_info: _VcsInfo


@cache
def commit() -> str:
    """The commit from which this package was installed, if its installer wrote it down."""
    try:
        note = metadata.distribution("penstock").read_text("direct_url.json")
        return msgspec.json.decode(note or b"", type=_DirectUrl).vcs_info.commit_id
    except (metadata.PackageNotFoundError, OSError, msgspec.MsgspecError):
        return _UNKNOWN_COMMIT


@CALLS.get("/v1/healthz", CallDoc("Check whether the broker is healthy", {200: Status}))
async def _healthz(_: HttpCall) -> Answer:
    return json_answer(Status("ok"))


@CALLS.get("/v1/version", CallDoc("Show the version", {200: Version}))
async def _version(_: HttpCall) -> Answer:
    return json_answer(Version(__version__, commit(), wal_enabled=True))
