"""The idempotency keys that a group has finished: a later record with the same key is finished without delivery.

Keys are kept for a time (see the settings), and there is a limit on their number. All are kept equally long, so the oldest expires first.
"""

from typing import Final

from penstock.core.queues.envelope import Envelope
from penstock.core.queues.stored import IdempotencyKey
from penstock.limits import IDEMPOTENCY_KEY_CHARS_MAX, QUEUE_IDEMPOTENCY_KEYS_MAX


class FinishedKeys:
    """The keys of one queue."""

    __slots__ = ("_keys_max", "_until_ms")

    def __init__(self, keys_max: int = QUEUE_IDEMPOTENCY_KEYS_MAX) -> None:
        self._keys_max: Final = keys_max
        self._until_ms: dict[IdempotencyKey, int] = {}

    def __len__(self) -> int:
        return len(self._until_ms)

    def remember(self, key: IdempotencyKey, until_ms: int) -> IdempotencyKey | None:
        """A record with this key was finished; returns the key that was dropped for it, if any."""
        # Moved to the end if it is known: the order is the order of expiry.
        self._until_ms.pop(key, None)
        self._until_ms[key] = until_ms
        if len(self._until_ms) <= self._keys_max:
            return None
        oldest = next(iter(self._until_ms))
        del self._until_ms[oldest]
        return oldest

    def has(self, key: IdempotencyKey, now_ms: int) -> bool:
        """Whether a record with this key was finished and the key has not expired."""
        until_ms = self._until_ms.get(key)
        return until_ms is not None and until_ms > now_ms

    def expire(self, now_ms: int, count_max: int) -> list[IdempotencyKey]:
        """Drop expired keys, at most this many; returns them."""
        expired: list[IdempotencyKey] = []
        for key, until_ms in self._until_ms.items():
            if until_ms > now_ms or len(expired) == count_max:
                break
            expired.append(key)
        for key in expired:
            del self._until_ms[key]
        return expired

    def next_ms(self) -> int | None:
        """When the next key expires."""
        return next(iter(self._until_ms.values()), None)


def key_of(envelope: Envelope) -> IdempotencyKey | None:
    """The key of a record; None if it has none or the key is too long."""
    key = envelope.idempotency_key
    tenant = envelope.tenant_id or ""
    if not key or len(key) > IDEMPOTENCY_KEY_CHARS_MAX or len(tenant) > IDEMPOTENCY_KEY_CHARS_MAX:
        return None
    return IdempotencyKey(tenant, key)
