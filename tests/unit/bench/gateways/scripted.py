"""A server that answers each piece it receives as a test says, on a free port of loopback."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.address import Address

Answer = Callable[[bytes], bytes | None]


@contextmanager
def scripted_server(make_answer: Callable[[], Answer]) -> Iterator[Address]:
    """``make_answer()`` gives each connection its own: bytes received to bytes sent; None hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve(sock: socket.socket) -> None:
        answer = make_answer()
        try:
            while data := sock.recv(1 << 16):
                if (out := answer(data)) is None:
                    sock.shutdown(socket.SHUT_RDWR)
                    return
                sock.sendall(out)
        except OSError:
            return

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            connections.append(sock)
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield Address(*listener.getsockname())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(5)
        for sock in connections:
            sock.close()
