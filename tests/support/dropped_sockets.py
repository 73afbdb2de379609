"""kafka-python leaves sockets to the garbage collector here and there, as when a connection is refused, which is what a killed broker does."""

import pytest


def ignore_dropped_sockets(config: pytest.Config) -> None:
    """Let it: the collector may come by in any later test, which would be blamed for it."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    config.addinivalue_line(
        "filterwarnings", "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    )
