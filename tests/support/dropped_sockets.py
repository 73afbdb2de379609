"""kafka-python leaves sockets to the garbage collector here and there, as when a connection is refused, which is what a killed broker does.

Hooks for the ``conftest.py`` of tests that use it.
"""

import gc

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Let it: the collector may come by in any later test, which would be blamed for it."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    config.addinivalue_line(
        "filterwarnings", "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    )


def pytest_sessionfinish() -> None:
    """Collect what is left: after the session the two lines above do not count any more, and the whole run would fail."""
    gc.collect()
