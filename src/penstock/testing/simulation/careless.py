"""Producers that do not wait for followers (acks=1), or for anybody (acks=0). They send everything once.

What they were told is no promise: what the leader has written may be lost with it. What is kept is where the leader said that it is, and there once, and in the
order in which it was sent over one connection.
"""

import asyncio
from random import Random
from typing import Final

from penstock.testing.simulation.clients import builder_of, produce_request, values_to_send
from penstock.testing.simulation.history import History, TopicPartition
from penstock.testing.simulation.wire_client import Bootstrap, KafkaLink, Lost, linked
from penstock.wire.kafka.apis import ApiKey

_BACKOFF_SECONDS: Final = 0.1


class CarelessProducer:
    """Sends to one partition until it is told to finish. ``acks`` is 0 or 1."""

    def __init__(
        self, name: str, place: TopicPartition, bootstrap: Bootstrap, history: History, random: Random, acks: int
    ) -> None:
        self.name: Final = name
        self.place: Final = place
        self._bootstrap = bootstrap
        self._history = history
        self._random = random
        self._acks = acks
        self._number = 0
        self._connections = 0
        self._is_finishing = False

    def finish(self) -> None:
        """Send no more."""
        self._is_finishing = True

    async def run(self, pause_seconds: float) -> None:
        """Produce."""
        while not self._is_finishing:
            try:
                address = await self._bootstrap.leader(self.place)
                if address is not None:
                    async with linked(address) as link:
                        self._connections += 1
                        await self._send(link, pause_seconds)
            except Lost as lost:
                self._history.note("lost", self.name, lost)
            await asyncio.sleep(_BACKOFF_SECONDS)

    async def _send(self, link: KafkaLink, pause_seconds: float) -> None:
        """Until something fails: what is sent over another connection may arrive before it."""
        name = f"{self.name}.{self._connections}"
        while not self._is_finishing:
            values = values_to_send(name, self._number, self._random)
            self._number += len(values)
            self._history.sends(name, self.place, values)
            request = produce_request(self.place, self._bootstrap, bytes(builder_of(values).build()), self._acks)
            if self._acks == 0:
                link.tell(ApiKey.PRODUCE, *request)
            else:
                answer = (await link.call(ApiKey.PRODUCE, *request)).responses[0].partition_responses[0]
                if answer.error_code:
                    self._history.note("refused", name, self.place, values[0].decode(), answer.error_code)
                    return
                self._history.was_taken(name, self.place, answer.base_offset, values)
            await asyncio.sleep(self._random.random() * 2 * pause_seconds)
