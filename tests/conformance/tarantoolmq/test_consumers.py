"""TarantoolMQ's calls about consumers: registering groups, committing and reading offsets, and sharing partitions."""

import time
from uuid import UUID

import pytest

from tests.conformance.tarantoolmq.client import Curl
from tests.support.waiting import eventually


def test_a_group_is_registered_once(curl: Curl, topic: str, group: str) -> None:
    status, registered, _ = curl.post(f"/consumers/{group}/groups", {"topic_name": topic})
    assert status == 201
    assert set(registered) == {"id", "name", "topic_name", "created_at"}
    assert UUID(registered["id"]).version == 4
    assert (registered["name"], registered["topic_name"]) == (group, topic)
    assert abs(registered["created_at"] - time.time()) < 60
    assert curl.post(f"/consumers/{group}/groups", {"topic_name": topic})[:2] == (201, registered)


def test_a_group_has_one_registration_for_each_topic(curl: Curl, topic: str, new_name: str, group: str) -> None:
    curl.post("/topics", {"name": new_name})
    ids = {curl.post(f"/consumers/{group}/groups", {"topic_name": name}).body["id"] for name in (topic, new_name)}
    assert len(ids) == 2


@pytest.mark.parametrize("body", [None, {}, {"topic_name": ""}, {"topic": "x"}])
def test_a_registration_needs_a_topic(curl: Curl, group: str, body: object) -> None:
    assert curl.post(f"/consumers/{group}/groups", body)[:2] == (400, {"error": "Missing topic_name"})


def test_a_new_group_is_at_offset_0_in_each_partition(curl: Curl, topic: str, group: str) -> None:
    curl.post(f"/consumers/{group}/groups", {"topic_name": topic})
    offsets = curl.get(f"/consumers/{group}/offsets?topic={topic}").body["offsets"]
    assert [(found["topic"], found["partition"], found["offset"]) for found in offsets] == [
        (topic, 0, 0),
        (topic, 1, 0),
    ]
    assert all(abs(found["updated_at"] - time.time()) < 60 for found in offsets)


def test_registering_keeps_the_offsets_that_a_group_has(curl: Curl, topic: str, group: str) -> None:
    curl.post(f"/consumers/{group}/offsets", {"topic_name": topic, "partition": 1, "offset": 7})
    for _ in range(2):
        curl.post(f"/consumers/{group}/groups", {"topic_name": topic})
        offsets = curl.get(f"/consumers/{group}/offsets").body["offsets"]
        assert [(found["partition"], found["offset"]) for found in offsets] == [(0, 0), (1, 7)]


def test_a_group_may_be_made_before_its_topic(curl: Curl, new_name: str, group: str) -> None:
    status, registered, _ = curl.post(f"/consumers/{group}/groups", {"topic_name": new_name})
    assert status == 201
    assert (registered["name"], registered["topic_name"]) == (group, new_name)
    assert curl.post(f"/consumers/{group}/groups", {"topic_name": new_name})[:2] == (201, registered)
    assert curl.get(f"/consumers/{group}/offsets?topic={new_name}")[:2] == (200, {"offsets": []})
    curl.post("/topics", {"name": new_name, "partitions": 3})
    path = f"/consumers/{group}/offsets?topic={new_name}"
    eventually(lambda: curl.get(path).body["offsets"], what="the offsets")
    assert [(found["partition"], found["offset"]) for found in curl.get(path).body["offsets"]] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
    assert curl.post(f"/consumers/{group}/groups", {"topic_name": new_name})[:2] == (201, registered)


def test_a_group_is_not_made_for_a_topic_that_cannot_be(curl: Curl, group: str) -> None:
    reply = curl.post(f"/consumers/{group}/groups", {"topic_name": "a b"})
    assert reply[:2] == (
        400,
        {
            "error": "The topic name 'a b' has a character other than ASCII letters, digits, '.', '_' and '-'. "
            "Choose another name."
        },
    )


def test_an_offset_is_committed_and_read(curl: Curl, topic: str, group: str) -> None:
    curl.post(f"/topics/{topic}/messages", [{"value": "x", "partition": 1}] * 3)
    assert curl.get(f"/consumers/{group}/offsets?topic={topic}")[:2] == (200, {"offsets": []})
    for offset in (3, 0, 2, 5, 2**63 - 1):
        body = {"topic_name": topic, "partition": 1, "offset": offset}
        assert curl.post(f"/consumers/{group}/offsets", body)[:2] == (200, {"committed": True})
        status, read, _ = curl.get(f"/consumers/{group}/offsets?topic={topic}")
        assert status == 200
        [found] = read["offsets"]
        assert abs(found.pop("updated_at") - time.time()) < 60
        assert found == {"topic": topic, "partition": 1, "offset": offset}


def test_without_a_topic_all_offsets_of_the_group_are_told(curl: Curl, topic: str, new_name: str, group: str) -> None:
    curl.post("/topics", {"name": new_name})
    for name in (topic, new_name):
        curl.post(f"/consumers/{group}/offsets", {"topic_name": name, "partition": 0, "offset": 0})
    found = curl.get(f"/consumers/{group}/offsets").body["offsets"]
    assert sorted(offset["topic"] for offset in found) == sorted([topic, new_name])


@pytest.mark.parametrize(
    "body",
    [None, {}, {"partition": 0, "offset": 0}, {"topic_name": "T", "offset": 0}, {"topic_name": "T", "partition": 0}],
)
def test_a_commit_needs_all_its_params(curl: Curl, group: str, body: object) -> None:
    assert curl.post(f"/consumers/{group}/offsets", body)[:2] == (400, {"error": "Missing required params"})


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"topic_name": "nobody"}, 404, "Topic not found"),
        ({"partition": 2}, 400, "Partition not found"),
        ({"partition": -1}, 400, "Partition not found"),
        ({"offset": -1}, 400, "Offset -1 cannot be committed; use an offset from 0 to 9223372036854775807"),
        ({"offset": "1"}, 400, "The body is invalid: Expected `int | null`, got `str` - at `$.offset`."),
    ],
)
def test_a_commit_that_cannot_be_changes_nothing(
    curl: Curl, topic: str, group: str, change: dict[str, object], status: int, text: str
) -> None:
    curl.post(f"/topics/{topic}/messages", {"value": "x", "partition": 0})
    good = {"topic_name": topic, "partition": 0, "offset": 1}
    assert curl.post(f"/consumers/{group}/offsets", good).status == 200
    reply = curl.post(f"/consumers/{group}/offsets", {**good, **change})
    assert reply[:2] == (status, {"error": text})
    [offset] = curl.get(f"/consumers/{group}/offsets").body["offsets"]
    assert (offset["partition"], offset["offset"]) == (0, 1)


def test_a_group_has_no_offsets_of_an_unknown_topic(curl: Curl, group: str) -> None:
    assert curl.get(f"/consumers/{group}/offsets?topic=nobody")[:2] == (200, {"offsets": []})


def test_a_group_may_have_any_name(curl: Curl, topic: str) -> None:
    for name in ("team/app", "a%20b", "%C3%A9"):
        body = {"topic_name": topic, "partition": 0, "offset": 0}
        assert curl.post(f"/consumers/{name}/offsets", body)[:2] == (200, {"committed": True})
        assert len(curl.get(f"/consumers/{name}/offsets").body["offsets"]) == 1
    reply = curl.post(f"/consumers/{'x' * 250}/groups", {"topic_name": topic})
    assert reply[:2] == (400, {"error": "A group id has at most 249 characters; choose a shorter one"})


def test_members_share_the_partitions_as_they_come_and_go(curl: Curl, topic: str, group: str) -> None:
    def join(who: str) -> object:
        body = {"topic_name": topic, "consumer_id": who, "session_timeout_ms": 600_000}
        return curl.post(f"/consumers/{group}/members", body)[:2]

    def partitions(who: str) -> object:
        return curl("PUT", f"/consumers/{group}/members/{who}?topic={topic}").body["partitions"]

    assert join("a") == (200, {"consumer_id": "a", "partitions": [0, 1]})
    assert join("b") == (200, {"consumer_id": "b", "partitions": [1]})
    assert partitions("a") == [0]
    assert curl("PUT", f"/consumers/{group}/members/a")[:2] == (200, {"consumer_id": "a"})
    assert curl("DELETE", f"/consumers/{group}/members/a")[:2] == (200, {"left": True})
    assert partitions("b") == [0, 1]


def test_a_silent_members_partitions_go_to_the_others(curl: Curl, topic: str, group: str) -> None:
    curl.post(f"/consumers/{group}/members", {"topic_name": topic, "consumer_id": "a"})
    loyal = {"topic_name": topic, "consumer_id": "b", "session_timeout_ms": 600_000}
    curl.post(f"/consumers/{group}/members", loyal)
    path = f"/consumers/{group}/members/b?topic={topic}"
    eventually(lambda: curl("PUT", path).body["partitions"] == [0, 1], what="the silent member's partition")
    status, body, _ = curl("PUT", f"/consumers/{group}/members/a")
    assert status == 404
    assert body == {"error": f"a is not a member of group {group}, or its session has expired; join again"}


@pytest.mark.parametrize("body", [None, {}, {"topic_name": "T"}, {"consumer_id": "c"}])
def test_a_member_says_who_it_is_and_what_it_reads(curl: Curl, group: str, body: object) -> None:
    reply = curl.post(f"/consumers/{group}/members", body)
    assert reply[:2] == (400, {"error": "Missing topic_name or consumer_id"})


def test_a_member_of_nothing_is_not_found(curl: Curl, group: str) -> None:
    reply = curl.post(f"/consumers/{group}/members", {"topic_name": "nobody", "consumer_id": "c"})
    assert reply[:2] == (404, {"error": "Topic not found"})
    for method in ("PUT", "DELETE"):
        reply = curl(method, f"/consumers/{group}/members/c")
        assert reply[:2] == (404, {"error": f"There is no group {group}; join it first"})
