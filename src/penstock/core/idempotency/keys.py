"""The produce keys in memory with their notes, by topic, oldest first.

A note is kept encoded, as in the log, which takes a third of the memory of the tuple; a key takes about 200 bytes. A key is forgotten
only when its window is over, its topic is deleted, or its record was never appended.
"""

from collections import deque
from collections.abc import Container, Iterator
from typing import Final
from uuid import UUID

from penstock.core.idempotency.stored import Key, Note, decode_note, encode_note

_TOPICS_PER_SWEEP: Final = 500


class Keys:
    """All keys. Those of a topic are in the order of their notes, so expired ones are at the front."""

    def __init__(self) -> None:
        self._topics: dict[UUID, dict[bytes, bytes]] = {}
        self._rotation: deque[UUID] = deque()
        self.count = 0

    def get(self, key: Key) -> Note | None:
        """The note of a key."""
        digests = self._topics.get(key.topic_id)
        value = None if digests is None else digests.get(key.digest)
        return None if value is None else decode_note(value)

    def put(self, key: Key, note: Note) -> None:
        """Add a key, or replace the note of one; this does not change its place in the order."""
        digests = self._topics.get(key.topic_id)
        if digests is None:
            digests = self._topics[key.topic_id] = {}
            self._rotation.append(key.topic_id)
        self.count += key.digest not in digests
        digests[key.digest] = encode_note(note)

    def drop(self, key: Key) -> None:
        """Forget a key, if it is known."""
        digests = self._topics.get(key.topic_id)
        if digests is not None and digests.pop(key.digest, None) is not None:
            self.count -= 1

    def drop_topic(self, topic_id: UUID) -> list[Key]:
        """Forget all keys of a topic, and return them."""
        digests = self._topics.pop(topic_id, {})
        self.count -= len(digests)
        return [Key(topic_id, digest) for digest in digests]

    def topics(self) -> list[UUID]:
        """The topics that have keys."""
        return list(self._topics)

    def take_over(self, now_ms: int, window_ms: int, count_max: int, in_use: Container[Key]) -> list[Key]:
        """Forget at most ``count_max`` keys whose window is over, of the topics in turn, and return them."""
        over: list[Key] = []
        for _ in range(min(len(self._rotation), _TOPICS_PER_SWEEP)):
            topic_id = self._rotation.popleft()
            digests = self._topics.get(topic_id)
            if not digests:
                self._topics.pop(topic_id, None)
                continue
            self._rotation.append(topic_id)
            looked_max = min(count_max - len(over), len(digests))
            for digest in self._fronts(digests, looked_max, now_ms, window_ms):
                key = Key(topic_id, digest)
                if key in in_use:
                    # Move it to the end; it is checked again later.
                    digests[digest] = digests.pop(digest)
                else:
                    self.drop(key)
                    over.append(key)
            if len(over) >= count_max:
                break
        return over

    @staticmethod
    def _fronts(digests: dict[bytes, bytes], looked_max: int, now_ms: int, window_ms: int) -> Iterator[bytes]:
        """The expired keys at the front. The caller removes each from the front before it takes the next."""
        for _ in range(looked_max):
            digest = next(iter(digests))
            note = decode_note(digests[digest])
            assert note is not None, "only notes of this version are put in"
            if note.noted_ms > now_ms:
                # The clock was ahead at that time. Keep the key for a whole window from now, at the end of the order.
                del digests[digest]
                digests[digest] = encode_note(note._replace(noted_ms=now_ms))
            elif now_ms - note.noted_ms >= window_ms:
                yield digest
            else:
                return

    def items(self) -> Iterator[tuple[Key, Note]]:
        """All keys."""
        for topic_id, digests in self._topics.items():
            for digest, value in digests.items():
                note = decode_note(value)
                assert note is not None, "only notes of this version are put in"
                yield Key(topic_id, digest), note
