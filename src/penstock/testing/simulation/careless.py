"""Producers that do not wait for followers (acks=1), or for any response (acks=0). They send everything once.

Their acknowledgements are no guarantee: what only the leader has written may be lost with it. Records that are kept are at the
acknowledged offset, only once, and in the order in which they were sent over one connection.
"""

import asyncio
from random import Random

from penstock.testing.simulation.clients import PartitionClient, builder_of, produce_request, values_to_send
from penstock.testing.simulation.history import History, TopicPartition
from penstock.testing.simulation.wire_client import Bootstrap, KafkaLink
from penstock.wire.kafka.apis import ApiKey


class CarelessProducer(PartitionClient):
    """Sends to one partition until it is finished. ``acks`` is 0 or 1."""

    def __init__(
        self, name: str, place: TopicPartition, bootstrap: Bootstrap, history: History, random: Random, acks: int
    ) -> None:
        super().__init__(name, place, bootstrap, history, random)
        self._acks = acks
        self._number = 0
        self._connections = 0

    async def run(self, pause_seconds: float) -> None:
        """Produce."""
        while not self._is_finishing:
            await self._at_leader(lambda link: self._send(link, pause_seconds))

    async def _send(self, link: KafkaLink, pause_seconds: float) -> None:
        """Until something fails: records sent over another connection may arrive before."""
        self._connections += 1
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
