"""The HTTP listener: Starlette on uvicorn, in the broker's event loop."""

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock import __version__

_KEEP_ALIVE_SECONDS: Final = 75
_CONNECTIONS_MAX: Final = 1000
_BACKLOG: Final = 128


def build_app(is_ready: Callable[[], bool]) -> Starlette:
    """The routes. ``is_ready`` is asked on every ``/readyz``."""

    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "alive", "version": __version__})

    async def readyz(_: Request) -> Response:
        if is_ready():
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready"}, status_code=503)

    async def not_found(_: Request, __: Exception) -> Response:
        return JSONResponse({"error": "Not found"}, status_code=404)

    async def wrong_method(_: Request, __: Exception) -> Response:
        return JSONResponse({"error": "Method not allowed"}, status_code=405, headers={"Allow": "GET, HEAD"})

    return Starlette(
        routes=[Route("/livez", livez), Route("/readyz", readyz)],
        exception_handlers={404: not_found, 405: wrong_method},
    )


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the broker has some already."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the process's signals alone."""
        yield


class HttpGateway:
    """Serves while the broker runs."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        config = uvicorn.Config(
            build_app(is_ready),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    def start(self, listener: socket.socket) -> None:
        """Listen on a bound socket, which is the gateway's from here on."""
        # From this moment: whoever connects before uvicorn has started waits in the backlog.
        listener.listen(_BACKLOG)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http")

    async def stop(self) -> None:
        """Finish what is under way and close."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
