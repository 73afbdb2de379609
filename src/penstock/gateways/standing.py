"""Where a partition begins and ends by its leader, wherever that is: for gateways that check or show it. Acknowledged records count."""

import asyncio

from penstock.core.broker import Broker
from penstock.core.standing import Standing, standing_of
from penstock.core.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.settled import settled


async def standing(broker: Broker, topic: Topic, index: int) -> Standing:
    """The leader is asked for a few seconds, while there is one to be found; then PenstockError. It changes nothing."""
    led = broker.opened(topic.name, index)
    if led is not None or broker.peers is None:
        if led is not None:
            await settled(led)
        # Another node may lead it by now.
        return standing_of(broker.partition(topic.name, index))
    # It says whether there is such a partition.
    broker.topics.partition(topic, index)
    told: asyncio.Future[Standing | PenstockError] = asyncio.get_running_loop().create_future()

    def done(found: Standing | PenstockError) -> None:
        # Whoever asked may be gone by now.
        if not told.done():
            told.set_result(found)

    broker.peers.standing(topic, index, done)
    found = await told
    if isinstance(found, PenstockError):
        if found.reason is Reason.LINK_LOST:
            # It was a question, so nothing can have been done.
            raise PenstockError(Reason.LEADER_NOT_AVAILABLE, found.text) from found
        raise found
    return found
