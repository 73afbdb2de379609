"""Records every byte that is encrypted, to prove that no (key, nonce, position) ever encrypts two different bytes."""

from penstock.encryption import crypto
from penstock.types import Buffer


class Recorder:
    """In the place of ``crypto.encryptor_at``."""

    def __init__(self) -> None:
        self._real = crypto.encryptor_at
        self.seen: dict[tuple[bytes, bytes, int], int] = {}
        """The byte that was encrypted with this key and nonce at this position."""
        self.doubles: list[str] = []

    def encryptor_at(self, key: bytes, nonce: bytes, position: int) -> "RecordedStream":
        return RecordedStream(self, key, nonce, position, self._real(key, nonce, position))

    def note(self, key: bytes, nonce: bytes, position: int, data: bytes) -> None:
        for at, byte in enumerate(data, position):
            if self.seen.setdefault((key, nonce, at), byte) != byte:
                self.doubles.append(f"two bytes at {at} with nonce {nonce.hex()}")


class RecordedStream:
    def __init__(self, recorder: Recorder, key: bytes, nonce: bytes, position: int, stream: crypto.Stream) -> None:
        self._recorder, self._key, self._nonce, self._position, self._stream = recorder, key, nonce, position, stream

    def update(self, data: Buffer) -> bytes:
        self._recorder.note(self._key, self._nonce, self._position, bytes(data))
        self._position += len(data)
        return self._stream.update(data)
