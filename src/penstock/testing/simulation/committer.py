"""A consumer group that commits increasing offsets to its coordinator, and fetches the committed offset at the end."""

import asyncio
from random import Random
from typing import Final

from penstock.address import Address
from penstock.testing.simulation.clients import BACKOFF_SECONDS, PartitionClient
from penstock.testing.simulation.history import History, TopicPartition
from penstock.testing.simulation.wire_client import Bootstrap, KafkaLink, Lost, linked
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.find_coordinator_generated import FindCoordinatorRequest
from penstock.wire.kafka.offset_commit_generated import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.kafka.offset_fetch_generated import OffsetFetchRequest, OffsetFetchRequestTopic

_FIND_VERSION: Final = 3
_COMMIT_VERSION: Final = 8
_FETCH_VERSION: Final = 7


class Committer(PartitionClient):
    """One group, for one partition. It always knows what it committed last, unless a response was lost."""

    def __init__(
        self, group: str, place: TopicPartition, bootstrap: Bootstrap, history: History, random: Random
    ) -> None:
        super().__init__(group, place, bootstrap, history, random)
        self.group: Final = group
        self.acknowledged = 0
        """The last acknowledged offset."""
        self._sent = 0
        self._unanswered: set[int] = set()
        """Commits that may still arrive, although their connection is lost."""
        self.is_done = False
        """Whether it is finished and has fetched the committed offset."""

    async def run(self, pause_seconds: float) -> None:
        """Commit."""
        while not self.is_done:
            try:
                address = await self._find()
                if address is not None:
                    async with linked(address) as link:
                        await self._work(link, pause_seconds)
            except Lost:
                self._unanswered.add(self._sent)
            await asyncio.sleep(BACKOFF_SECONDS)

    async def _find(self) -> Address | None:
        request = FindCoordinatorRequest(key=self.group, key_type=0)
        answer = await self._bootstrap.ask(ApiKey.FIND_COORDINATOR, _FIND_VERSION, request)
        return Address(answer.host, answer.port) if not answer.error_code else None

    async def _work(self, link: KafkaLink, pause_seconds: float) -> None:
        while not self._is_finishing:
            if self._sent == self.acknowledged:
                self._sent += 1
            if not await self._commit(link):
                return
            await asyncio.sleep(self._random.random() * 2 * pause_seconds)
        await self._check(link)

    async def _commit(self, link: KafkaLink) -> bool:
        partition = OffsetCommitRequestPartition(partition_index=self.place.partition, committed_offset=self._sent)
        topic = OffsetCommitRequestTopic(name=self.place.topic, partitions=[partition])
        request = OffsetCommitRequest(group_id=self.group, topics=[topic])
        answer = await link.call(ApiKey.OFFSET_COMMIT, _COMMIT_VERSION, request)
        code = answer.topics[0].partitions[0].error_code
        self._history.note("committed", self.group, self.place, self._sent, code)
        if code:
            # The outcome is unknown if the coordinator could not wait for its followers.
            self._unanswered.add(self._sent)
            return False
        self.acknowledged = self._sent
        return True

    async def _check(self, link: KafkaLink) -> None:
        topic = OffsetFetchRequestTopic(name=self.place.topic, partition_indexes=[self.place.partition])
        answer = await link.call(
            ApiKey.OFFSET_FETCH, _FETCH_VERSION, OffsetFetchRequest(group_id=self.group, topics=[topic])
        )
        if answer.error_code or answer.topics[0].partitions[0].error_code:
            return
        found = answer.topics[0].partitions[0].committed_offset
        self._history.note("committed is", self.group, self.place, found)
        is_known = self.acknowledged <= found <= self._sent or (not self.acknowledged and found == -1)
        if not is_known and found not in self._unanswered:
            self._history.violate(
                f"{self.group} received an acknowledgement of offset {self.acknowledged} for {self.place}, but {found} is committed"
            )
        self.is_done = True
