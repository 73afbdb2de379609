"""The event loop: uvloop, which halves the cost of an event; asyncio's own where there is no uvloop."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop that is not running yet."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
