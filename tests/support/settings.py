"""Settings that many tests share."""

from penstock.settings import QueueSettings

AT_ONCE = QueueSettings(backoff_ms=0, max_backoff_ms=0)
"""Records that failed are delivered again without a wait."""
