"""What is left after a cut: everything durable, and of the rest whatever is worst.

For each file and each directory by itself, what was not synced is lost, kept, or kept in part:

- a file keeps some of its unsynced pages and not others, whichever came first; its size may be any that it had on the way; a
  page within that size that did not arrive has zeros or, beyond the synced end, arbitrary bytes;
- or it keeps its changes up to one of them, and of that one the first bytes;
- a directory keeps some of its unsynced creates, unlinks and renames and not others, as long as each follows from those before
  it that concern the same names; or all up to one of them.

A rename is atomic: both of its names are changed, or neither is.
"""

from enum import Enum
from random import Random

from tests.support.powerfs.state import (
    ROOT,
    Change,
    DirectoryNode,
    FileNode,
    Naming,
    Node,
    State,
    apply,
    rename_in,
    resize,
)

PAGE = 4096


class Fate(Enum):
    """What becomes of the unsynced changes of one node."""

    LOST = "lost"
    KEPT = "kept"
    PREFIX = "prefix"
    SCATTERED = "scattered"


FATES = list(Fate)


def survivors(state: State, random: Random) -> State:
    """The state of the disk when the power is back; everything in it is durable."""
    left: dict[int, Node] = {}
    waiting = [ROOT]
    while waiting:
        number = waiting.pop()
        node = left[number] = _survivor(state.nodes[number], random)
        if isinstance(node, DirectoryNode):
            waiting.extend(node.durable.values())
    return State(left)


def _survivor(node: Node, random: Random) -> Node:
    fate = random.choice(FATES)
    if isinstance(node, DirectoryNode):
        names = _names(node, fate, random)
        return DirectoryNode(node.mode, names, dict(names))
    content = _content(node, fate, random)
    return FileNode(node.mode, content, bytearray(content))


# Directories.


def _names(node: DirectoryNode, fate: Fate, random: Random) -> dict[str, int]:
    names = dict(node.durable)
    for naming in _kept_namings(node.pending, fate, random):
        rename_in(names, naming)
    return names


def _kept_namings(pending: list[Naming], fate: Fate, random: Random) -> list[Naming]:
    if fate is Fate.LOST:
        return []
    if fate is Fate.KEPT:
        return pending
    if fate is Fate.PREFIX:
        return pending[: random.randint(0, len(pending))]
    kept: list[Naming] = []
    stuck: set[str] = set()
    for naming in pending:
        if stuck.isdisjoint(naming.names) and random.random() < 0.5:
            kept.append(naming)
        else:
            stuck.update(naming.names)
    return kept


# Files.


def _content(node: FileNode, fate: Fate, random: Random) -> bytearray:
    content = bytearray(node.durable)
    if fate is Fate.KEPT:
        return bytearray(node.content)
    if fate is Fate.LOST or not node.pending:
        return content
    if fate is Fate.PREFIX:
        last = random.randrange(len(node.pending))
        for change in node.pending[:last]:
            apply(content, change)
        torn = node.pending[last]
        if torn.data:
            apply(content, Change(torn.number, torn.position, torn.data[: random.randint(0, len(torn.data))]))
        return content
    return _scattered(node, random)


def _scattered(node: FileNode, random: Random) -> bytearray:
    """Pages arrive in any order. The size is metadata: truncates stay in order, and no page is older than the last one."""
    pending = node.pending[: _end_between_truncates(node.pending, random)]
    sizes = _sizes(len(node.durable), pending)
    last_truncate = max((n for n, change in enumerate(pending) if change.data is None), default=-1)
    size = random.choice(sizes[last_truncate + 1 :])
    content = bytearray(node.durable)
    resize(content, size)
    for start in range(0, size, PAGE):
        content[start : start + PAGE] = _page(node, pending, start, random)[: size - start]
    synced_end = min([len(node.durable), *(change.position for change in pending if change.data is None)])
    if synced_end < size and random.random() < 0.25:
        _spoil(content, synced_end, random)
    return content


def _end_between_truncates(pending: list[Change], random: Random) -> int:
    """How many changes may have arrived: up to one of the truncates, or all."""
    return random.choice([n for n, change in enumerate(pending) if change.data is None] + [len(pending)])


def _sizes(size: int, pending: list[Change]) -> list[int]:
    sizes = [size]
    for change in pending:
        size = change.position if change.data is None else max(size, change.position + len(change.data))
        sizes.append(size)
    return sizes


def _page(node: FileNode, pending: list[Change], start: int, random: Random) -> bytearray:
    """The page as it was after some of the writes to it, and all truncates."""
    page = bytearray(node.durable[start : start + PAGE])
    resize(page, PAGE)
    writes = sum(change.data is not None and _overlaps(change.position, change.data, start) for change in pending)
    arrived = random.randint(0, writes)
    for change in pending:
        if change.data is None:
            cut = min(max(change.position - start, 0), PAGE)
            page[cut:] = bytes(PAGE - cut)
        elif arrived and _overlaps(change.position, change.data, start):
            arrived -= 1
            low, high = max(start, change.position), min(start + PAGE, change.position + len(change.data))
            page[low - start : high - start] = change.data[low - change.position : high - change.position]
    return page


def _overlaps(position: int, data: bytes, start: int) -> bool:
    return position < start + PAGE and start < position + len(data)


def _spoil(content: bytearray, synced_end: int, random: Random) -> None:
    """Of one page beyond the synced end nothing arrived, and the disk has something else there."""
    page = random.randrange(synced_end, len(content)) // PAGE * PAGE
    low, high = max(page, synced_end), min(page + PAGE, len(content))
    content[low:high] = random.randbytes(high - low)
