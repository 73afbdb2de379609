"""One topic, one group and one offset, whichever of the five APIs is used for which step."""

import itertools
from collections.abc import Iterator

import pytest

from penstock.testing.process import BrokerProcess
from tests.conformance.crossed.doors import NAMES, Doors
from tests.support.waiting import eventually

_numbers = itertools.count()
SHARING = [name for name in NAMES if name != "driftq"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    anywhere = "127.0.0.1:0"
    settings = {"groups.initial_rebalance_delay_ms": 0}
    folder = tmp_path_factory.mktemp("crossed") / "data"
    with BrokerProcess(folder, settings, http=anywhere, tcp=anywhere, grpc=anywhere) as broker:
        yield broker
        assert broker.running, broker.log_text()
        assert "Traceback" not in broker.log_text(), broker.log_text()


@pytest.fixture(scope="module")
def doors(broker: BrokerProcess) -> Iterator[Doors]:
    with Doors(broker) as doors:
        yield doors


@pytest.fixture
def topic() -> str:
    return f"crossed-{next(_numbers)}"


@pytest.mark.parametrize("consumer", NAMES)
@pytest.mark.parametrize("producer", NAMES)
def test_what_one_api_does_the_others_see(doors: Doors, topic: str, producer: str, consumer: str) -> None:
    giver, taker = doors[producer], doors[consumer]
    group = f"group-of-{topic}"

    giver.create(topic, 2)
    assert all(topic in door.topics() for door in doors)

    values = [f"{producer} {number}" for number in range(6)]
    offsets = [giver.produce(topic, f"key-{at}", value, at % 2) for at, value in enumerate(values)]
    assert offsets == [0, 0, 1, 1, 2, 2]
    for partition in range(2):
        assert taker.read(topic, partition, 0, 3) == values[partition::2]
        assert taker.read(topic, partition, 2, 1) == [values[partition + 4]]

    taker.commit(group, topic, 0, 2)
    for door in doors:
        # A queue's floor follows its acks, so it may come a moment after them.
        eventually(lambda door=door: door.committed(group, topic, 0) == 2, what=f"{door.name} sees the commit")

    if producer != "driftq":
        giver.commit(group, topic, 0, 1)
        assert {door.name: door.committed(group, topic, 0) for door in doors} == dict.fromkeys(NAMES, 1)
        assert taker.read(topic, 0, 1, 2) == values[2::2], "a replay from where the group was set back to"

    taker.delete(topic)
    assert not any(topic in door.topics() for door in doors)
    for door in doors:
        eventually(lambda door=door: door.committed(group, topic, 0) is None, what=f"{door.name} forgets the offset")


@pytest.mark.parametrize("sharer", SHARING)
def test_members_share_partitions_and_the_last_one_has_them_all(doors: Doors, topic: str, sharer: str) -> None:
    door, group = doors[sharer], f"group-of-{topic}"
    door.create(topic, 4)
    with door.sharing(group, topic, "anna") as annas:
        eventually(lambda: annas() == [0, 1, 2, 3])
        with door.sharing(group, topic, "bert") as berts:
            eventually(lambda: (annas(), berts()) and len(annas()) == 2 and sorted(annas() + berts()) == [0, 1, 2, 3])
        eventually(lambda: annas() == [0, 1, 2, 3])


@pytest.mark.parametrize("setter", [name for name in NAMES if name != "driftq"])
def test_a_queue_works_again_what_a_commit_takes_back(doors: Doors, topic: str, setter: str) -> None:
    queue, group = doors["driftq"], f"group-of-{topic}"
    queue.create(topic, 1)
    for number in range(4):
        queue.produce(topic, "key", f"value {number}", 0)
    queue.commit(group, topic, 0, 3)
    eventually(lambda: doors[setter].committed(group, topic, 0) == 3)
    doors[setter].commit(group, topic, 0, 1)
    queue.commit(group, topic, 0, 4)
    eventually(lambda: doors[setter].committed(group, topic, 0) == 4)


@pytest.mark.parametrize("setter", SHARING)
def test_a_commit_past_the_end_is_one_for_every_api(doors: Doors, topic: str, setter: str) -> None:
    queue, group = doors["driftq"], f"group-of-{topic}"
    queue.create(topic, 1)
    queue.produce(topic, "key", "value 0", 0)
    doors[setter].commit(group, topic, 0, 3)
    assert {door.name: door.committed(group, topic, 0) for door in doors} == dict.fromkeys(NAMES, 3)
    for number in range(1, 4):
        queue.produce(topic, "key", f"value {number}", 0)
    # The next record that a worker of the group can finish is the fourth.
    queue.commit(group, topic, 0, 4)
    eventually(lambda: doors[setter].committed(group, topic, 0) == 4)


def test_a_key_lands_in_the_same_partition_through_every_api(doors: Doors, topic: str) -> None:
    doors["kafka"].create(topic, 7)
    places = {key: {door.name: door.place(topic, key) for door in doors} for key in map("key-{}".format, range(12))}
    assert [len(set(found.values())) for found in places.values()] == [1] * 12, places
    assert len({found["kafka"] for found in places.values()}) > 1
