"""Encryption of one data directory: opened with its keys, refused without them, and what is still in the clear.

On disk: ``encryption.json``, the keyring (:mod:`penstock.encryption.keyring`), which only the right master key opens. ``node.json`` says that the
directory is encrypted, so that neither a lost keyring nor a missing key can be mistaken for a directory in the clear, whose
recovery would cut every log.

When a directory in the clear is opened with a key for the first time, its small files and the active segments are encrypted
at once. Closed segments stay as they are until retention or compaction replaces them, or ``penstock encryption convert``
encrypts them. When none is left, the keyring says so, and data in the clear is refused from then on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from penstock.encryption.disk import EncryptedDisk
from penstock.encryption.keyring import Keyring, decode, encode, new_keyring
from penstock.encryption.places import is_segment
from penstock.encryption.state import Kind
from penstock.errors import PenstockError, Reason
from penstock.log.checkpoint import LogKey, load_checkpoint
from penstock.log.cutting import CutNote
from penstock.log.manager import CHECKPOINT, partitions
from penstock.log.names import (
    CLEAN_OFFSET,
    CUT,
    LEADER_EPOCHS,
    LOG,
    SNAPSHOT,
    START_OFFSET,
    SWAP,
    offset_of,
    segment_stem,
)
from penstock.ports import Disk, Keys, Report

KEYRING: Final = "encryption.json"
_ROOT_FILES: Final = (CHECKPOINT, "high-watermarks.checkpoint")
_NOTES: Final = frozenset({START_OFFSET, CLEAN_OFFSET, CUT, LEADER_EPOCHS})


@dataclass(frozen=True, slots=True)
class Counts:
    """What the segments of a data directory are."""

    encrypted: int = 0
    clear: int = 0
    unreadable: int = 0


def is_encrypted(disk: Disk, data_dir: str) -> bool:
    """Whether a data directory has a keyring."""
    return disk.exists(f"{data_dir}/{KEYRING}")


def open_encrypted(
    disk: Disk, data_dir: str, keys: Keys | None, report: Report, *, was_encrypted: bool = False
) -> EncryptedDisk | None:
    """The disk of a data directory whose keyring exists, for reading; None if it is not encrypted. INVALID_CONFIG without the key."""
    path = f"{data_dir}/{KEYRING}"
    if not disk.exists(path):
        if was_encrypted:
            raise _refused(
                f"The data directory {data_dir} is encrypted, and its keyring {KEYRING} is missing: restore that file from a backup of the directory"
            )
        return None
    if keys is None:
        raise _refused(
            f"The data directory {data_dir} is encrypted: set encryption.key_file (or PENSTOCK_ENCRYPTION_KEY) to the master key that it was encrypted with"
        )
    ring, _ = decode(disk.read_bytes(path), keys, path)
    return EncryptedDisk(disk, data_dir, ring, report)


def prepare(
    disk: Disk, data_dir: str, keys: Keys | None, report: Report, *, was_encrypted: bool
) -> EncryptedDisk | None:
    """The disk for a start of the node; None if data is not encrypted.

    Creates the keyring of a directory that has none, rotates it if the current master key is another one, and encrypts what can be
    encrypted at once. INVALID_CONFIG if the key is missing or wrong.
    """
    path = f"{data_dir}/{KEYRING}"
    opened = open_encrypted(disk, data_dir, keys, report, was_encrypted=was_encrypted)
    if keys is None:
        return None
    if opened is None:
        ring = new_keyring(complete=not any(True for _ in partitions(disk, data_dir)))
        _save(disk, path, ring, keys)
        opened = EncryptedDisk(disk, data_dir, ring, report)
    else:
        rotated = rotate(disk, data_dir, keys)
        if rotated is not None:
            opened.ring = rotated
            report(f"{path}: wrapped by the new master key {keys.current}; the old one is not needed any more")
    if not opened.ring.complete:
        _encrypt_small(opened, data_dir)
        encrypt_segments(opened, data_dir, closed=False)
        _settle(disk, opened, data_dir, keys, report)
    for stripped in unsealed(opened, data_dir):
        report(f"{stripped}: the seal of this closed segment was removed; its records cannot be read")
        opened.distrust(stripped)
    return opened


def rotate(disk: Disk, data_dir: str, keys: Keys, *, always: bool = False) -> Keyring | None:
    """Wrap the keyring with the current master key and add a key for new data; None if it is wrapped by that key already."""
    path = f"{data_dir}/{KEYRING}"
    ring, master = decode(disk.read_bytes(path), keys, path)
    if master == keys.current and not always:
        return None
    ring = ring.extended()
    _save(disk, path, ring, keys)
    return ring


def _settle(disk: Disk, opened: EncryptedDisk, data_dir: str, keys: Keys, report: Report) -> None:
    left = count(opened, data_dir).clear
    if left:
        report(
            f"{left} closed segments are not encrypted; they are replaced by retention and compaction, or by `penstock encryption convert` on the stopped node"
        )
        return
    opened.ring = opened.ring.completed()
    _save(disk, f"{data_dir}/{KEYRING}", opened.ring, keys)


def convert(disk: Disk, data_dir: str, keys: Keys, report: Report) -> int:
    """Encrypt everything of a stopped node that is in the clear; returns the number of segments that were."""
    opened = open_encrypted(disk, data_dir, keys, report)
    if opened is None:
        raise _refused(
            f"The data directory {data_dir} is not encrypted: start the broker with encryption.key_file first"
        )
    if opened.ring.complete:
        return 0
    _encrypt_small(opened, data_dir)
    converted = encrypt_segments(opened, data_dir, closed=True)
    _settle(disk, opened, data_dir, keys, report)
    return converted


def encrypt_segments(disk: EncryptedDisk, data_dir: str, *, closed: bool) -> int:
    """Encrypt the segments that are in the clear: the active ones and, on request, the closed ones too."""
    converted = 0
    for _, _, directory in partitions(disk, data_dir):
        names = [name for name in disk.listdir(directory) if is_segment(name)]
        logs = [name for name in names if offset_of(name, LOG) is not None]
        for name in names:
            is_active = name == logs[-1] if logs else False
            if is_active or name.endswith(SWAP) or closed:
                converted += disk.encrypt_segment(f"{directory}/{name}", closed=not is_active)
    return converted


def _encrypt_small(disk: EncryptedDisk, data_dir: str) -> None:
    for path in _small_files(disk, data_dir):
        if not disk.is_sealed(path):
            disk.write_atomic(path, disk.read_bytes(path))


def _small_files(disk: Disk, data_dir: str) -> Iterator[str]:
    for name in _ROOT_FILES:
        if disk.exists(f"{data_dir}/{name}"):
            yield f"{data_dir}/{name}"
    for _, _, directory in partitions(disk, data_dir):
        for name in disk.listdir(directory):
            if name in _NOTES or name.endswith(SNAPSHOT):
                yield f"{directory}/{name}"


def count(disk: EncryptedDisk, data_dir: str) -> Counts:
    """What the segments are."""
    found = dict.fromkeys(Kind, 0)
    for _, _, directory in partitions(disk, data_dir):
        for name in disk.listdir(directory):
            if is_segment(name):
                found[disk.state_of(f"{directory}/{name}").kind] += 1
    return Counts(found[Kind.ENCRYPTED], found[Kind.CLEAR], found[Kind.UNREADABLE])


def unsealed(disk: EncryptedDisk, data_dir: str) -> Iterator[str]:
    """Closed segments that must have a seal and have none: a sync seals them before the recovery point moves past them."""
    try:
        points = load_checkpoint(disk, f"{data_dir}/{CHECKPOINT}").points
    except ValueError:
        return
    for topic_id, partition, directory in partitions(disk, data_dir):
        point = points.get(LogKey(topic_id, partition))
        synced_to = -1 if point is None else _synced_to(disk, directory, point.offset)
        bases = [base for name in disk.listdir(directory) if (base := offset_of(name, LOG)) is not None]
        for base, following in pairwise(bases):
            if following >= synced_to:
                # It may have been closed after the last sync. Recovery seals it.
                break
            path = segment_stem(directory, base) + LOG
            state = disk.state_of(path)
            if state.kind is Kind.ENCRYPTED and state.seal is None:
                yield path


def _synced_to(disk: Disk, directory: str, offset: int) -> int:
    """Below which offset every closed segment was sealed: the recovery point, or where the log was truncated since."""
    note = CutNote(disk, directory)
    if not note.is_there:
        return offset
    cut = note.read()
    return -1 if cut is None else min(offset, cut[1])


def _save(disk: Disk, path: str, ring: Keyring, keys: Keys) -> None:
    disk.write_atomic(path, encode(ring, keys))


def _refused(text: str) -> PenstockError:
    return PenstockError(Reason.INVALID_CONFIG, text)
