"""A member of a group for as long as a stream is open, at the node that coordinates the group."""

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.core.operations.handling import OnEnd, OnItems
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import MemberAssignment, Membership
from penstock.types import GroupId, PartitionKey, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker


class OpenMembership:
    """One stream. Its first item is sent before the constructor returns; if that fails, the member has not joined."""

    def __init__(
        self,
        broker: "Broker",
        asked: Membership,
        caller: Caller,
        on_items: OnItems[MemberAssignment],
        on_end: OnEnd,
    ) -> None:
        self._broker = broker
        self._group, self._topic = GroupId(asked.group), TopicName(asked.topic)
        self._consumer_id = asked.consumer_id
        self._on_items = on_items
        self._on_end = on_end
        self._over = False
        # The group identifies its listeners by identity.
        self._listener = self._changed
        key = self._group, self._topic, self._consumer_id
        partitions = broker.groups.shared.join(
            self._group,
            self._topic,
            self._consumer_id,
            session_timeout_ms=None,
            client=caller.client,
            on_change=self._listener,
        )
        previous = broker.door.memberships.pop(key, None)
        if previous is not None:
            previous.replaced()
        broker.door.memberships[key] = self
        self._key = key
        try:
            assignment = self._assignment(partitions)
        except PenstockError:
            self.close()
            raise
        on_items((assignment,))

    def grant(self, count: int) -> None:
        """Assignments are sent without credit, because they are few."""

    def close(self) -> None:
        """The member leaves."""
        if self._over:
            return
        self._forget()
        # The group may be gone already: its topic was deleted, or the broker stops.
        with suppress(PenstockError):
            self._broker.groups.shared.leave(self._group, self._consumer_id, self._listener)

    def replaced(self) -> None:
        """A newer stream has the same consumer id."""
        self._end(
            PenstockError(
                Reason.FENCED_INSTANCE_ID,
                f"Another subscription of {self._consumer_id[:64]!r} replaced this one. "
                "Use a unique id for each consumer of a group.",
            )
        )

    def _changed(self, partitions: tuple[int, ...]) -> None:
        if self._over:
            return
        if partitions:
            try:
                self._on_items((self._assignment(partitions),))
            except PenstockError:
                pass
            else:
                return
        # No partitions are left, or the group is not here any more. Its coordinator is in the middle of a change: look after it.
        self._broker.flusher.gather(self._look)

    def _look(self) -> None:
        if self._over:
            return
        try:
            partitions = self._broker.groups.shared.partitions(self._group, self._topic, self._consumer_id)
            assignment = self._assignment(partitions)
        except PenstockError as error:
            self._end(PenstockError(Reason.NOT_COORDINATOR, error.text))
        else:
            self._on_items((assignment,))

    def _assignment(self, partitions: tuple[int, ...]) -> MemberAssignment:
        keys = [PartitionKey(self._topic, index) for index in partitions]
        committed = self._broker.groups.fetch_offsets(self._group, keys)
        return MemberAssignment(partitions, {key.partition: found.offset for key, found in committed.items()})

    def _end(self, error: PenstockError) -> None:
        if not self._over:
            self.close()
            self._on_end(error)

    def _forget(self) -> None:
        self._over = True
        if self._broker.door.memberships.get(self._key) is self:
            del self._broker.door.memberships[self._key]
