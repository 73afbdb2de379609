"""Lets the time pass for which readers wait for replicas."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.limits import SETTLE_MS_MAX
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_wire import until

T = TypeVar("T")


async def after_settling(node: KafkaNode, answer: Coroutine[Any, Any, T]) -> T:
    """The answer of a reader that waits, once it has waited for long enough."""
    settling = node.broker.settling
    asked = asyncio.ensure_future(answer)
    await until(lambda: settling.next_deadline_ms() is not None)
    node.clock.advance(SETTLE_MS_MAX)
    settling.tick(node.clock.monotonic_ms())
    return await asked
