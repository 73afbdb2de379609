"""How queues answer, and the words by which they say why a lease ended."""

from collections.abc import Callable

from penstock.errors import Reason

Done = Callable[[Reason | None], None]
"""Told None once what was asked for is durable, else why it did not happen."""
Cancel = Callable[[], None]
"""Nobody wants the answer any more; fine after it has come."""

ACK_TIMEOUT = "ack_timeout"
OWNER_DISCONNECTED = "owner_disconnected"
DEADLINE_EXCEEDED = "deadline_exceeded"
