"""Ways in which a commit of an offset goes wrong at the node that it belongs to, whichever gateway it comes through."""

import asyncio
from typing import Any

import pytest

from penstock.errors import PenstockError, Reason
from tests.support.gateway_cluster import GatewayNode


def refuse_first(node: GatewayNode, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The node refuses a commit while the list is empty, as one that loads the group: nothing is done, and that will pass."""
    commit, refused = node.broker.groups.commit_offset, []

    def refuse(*given: Any) -> None:
        if not refused:
            refused.append(given)
            raise PenstockError(Reason.COORDINATOR_LOAD_IN_PROGRESS, "not yet")
        commit(*given)

    monkeypatch.setattr(node.broker.groups, "commit_offset", refuse)
    return refused


def begin_and_lose(node: GatewayNode, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every commit is appended, and nobody knows whether it was copied; gives back those that came."""
    came: list[Any] = []

    def begin(*given: Any) -> None:
        came.append(given)
        given[2](Reason.NOT_COORDINATOR)

    monkeypatch.setattr(node.broker.groups, "commit_offset", begin)
    return came


def take_and_say_nothing(node: GatewayNode, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """No commit is answered; the event is set when one came."""
    came = asyncio.Event()
    monkeypatch.setattr(node.broker.groups, "commit_offset", lambda *_: came.set())
    return came
