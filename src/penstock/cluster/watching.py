"""Detects at once that the process of another node has ended, so that its partitions need not wait until its lease ends.

The controller has a connection to every other node, and every node has one to the controller. If it breaks, and the node's machine refuses
two new ones a moment apart, the process has ended. Then its entry is removed, provided that it is still the entry of that incarnation,
and for a controller also the entry ``controller``. A node that does not answer, because it is unreachable or paused, keeps its lease.

A mistake is safe: leases and entries are for liveness only, and epochs distinguish a replaced leader from its successors. The node registers
again by itself, and is from then on never removed in this way.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

from penstock.cluster.links import Identity, Link
from penstock.core.broker import Broker
from penstock.core.cluster.image import CONTROLLER_KEY, RegisteredNode, node_key
from penstock.errors import PenstockError
from penstock.metadata.port import Compare, Delete, Operation, SharedStore
from penstock.types import NodeId

logger = logging.getLogger("penstock.cluster")

_REFUSALS_MIN: Final = 2
_REFUSED_SECONDS: Final = 0.3
"""Between two refusals: enough for a process that only reopens its listener."""
_RETRY_SECONDS: Final = 1.0
_REMOVED_MAX: Final = 1_000


class Watching:
    """Watches the processes of other nodes."""

    def __init__(self, broker: Broker, store: SharedStore, identity: Callable[[], Identity]) -> None:
        self._broker = broker
        self._cluster: Final = broker.cluster
        self._store = store
        self._identity = identity
        self._tasks: dict[tuple[NodeId, int], asyncio.Task[None]] = {}
        self._removed: dict[UUID, None] = {}
        """Processes whose entry this node has removed."""

    def start(self) -> None:
        """Begin to watch."""
        self._cluster.nodes.on_changed.append(self._look)
        self._look()

    async def stop(self) -> None:
        """Stop watching."""
        with contextlib.suppress(ValueError):
            self._cluster.nodes.on_changed.remove(self._look)
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _look(self) -> None:
        wanted = {(node.node_id, node.epoch): node for node in self._watched()}
        for incarnation in [incarnation for incarnation in self._tasks if incarnation not in wanted]:
            self._tasks.pop(incarnation).cancel()
        for incarnation, node in wanted.items():
            if incarnation not in self._tasks:
                self._tasks[incarnation] = asyncio.get_running_loop().create_task(self._watch(node))

    def _watched(self) -> list[RegisteredNode]:
        nodes, me = self._cluster.nodes, self._broker.node_id
        controller = nodes.controller
        if controller is None:
            return []
        return [
            node
            for node in nodes.nodes.values()
            if node.node_id != me
            and me in nodes.nodes
            and controller.node_id in (me, node.node_id)
            and node.incarnation not in self._removed
        ]

    async def _watch(self, node: RegisteredNode) -> None:
        link = Link(node.node_id, self._cluster.nodes, self._broker.entropy)
        refusals = 0
        try:
            while refusals < _REFUSALS_MIN:
                try:
                    await link.connect(self._identity())
                except PenstockError as error:
                    refused = isinstance(error.__cause__, ConnectionRefusedError)
                    refusals = refusals + 1 if refused else 0
                    if refusals < _REFUSALS_MIN:
                        await asyncio.sleep(_REFUSED_SECONDS if refused else _RETRY_SECONDS)
                else:
                    refusals = 0
                    await link.lost()
            await self._remove(node)
        finally:
            await link.aclose()

    async def _remove(self, node: RegisteredNode) -> None:
        """The process has ended: remove its entry."""
        controller = self._cluster.nodes.controller
        if controller is None:
            return
        key = node_key(node.node_id)
        operations: list[Operation] = [Delete(key)]
        if controller.node_id == node.node_id:
            operations.append(Delete(CONTROLLER_KEY))
        compares = [
            Compare(key, create_revision=node.epoch),
            Compare(CONTROLLER_KEY, create_revision=controller.epoch),
        ]
        self._removed[node.incarnation] = None
        if len(self._removed) > _REMOVED_MAX:
            del self._removed[next(iter(self._removed))]
        logger.warning("node %d has stopped: it refuses connections; other nodes take over", node.node_id)
        try:
            await self._store.txn(compares, operations)
        except PenstockError as error:
            # Its lease ends anyway.
            logger.warning("waiting for node %d: %s", node.node_id, error.text)
