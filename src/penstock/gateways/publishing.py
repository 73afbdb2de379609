"""Publishing records of several topics together, for the gateways whose clients send record by record."""

from collections.abc import Sequence
from functools import partial

from penstock.core.publish import NewRecord, Placed, PublishDone, Publisher, Results
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.types import Acks


def publish_by_topic(
    publisher: Publisher, caller: Caller, topics: Sequence[str], records: Sequence[NewRecord], done: PublishDone
) -> None:
    """Publish each record to the topic at the same place, with one call of the core for each topic. ``done`` gets all results, in
    order, once every record is committed or refused.
    """
    if topics.count(topics[0]) == len(topics):
        _publish(publisher, caller, topics[0], records, done)
        return
    places: dict[str, list[int]] = {}
    for at, topic in enumerate(topics):
        places.setdefault(topic, []).append(at)
    results: list[Placed | PenstockError] = [PenstockError(Reason.UNKNOWN)] * len(topics)
    left = len(places)

    def settle(at_these: Sequence[int], found: Results) -> None:
        nonlocal left
        for at, result in zip(at_these, found, strict=True):
            results[at] = result
        left -= 1
        if not left:
            done(results)

    for topic, at_these in places.items():
        _publish(publisher, caller, topic, [records[at] for at in at_these], partial(settle, at_these))


def _publish(publisher: Publisher, caller: Caller, topic: str, records: Sequence[NewRecord], done: PublishDone) -> None:
    try:
        publisher.publish(caller, topic, records, Acks.ALL, done)
    except PenstockError as error:
        done([error] * len(records))
