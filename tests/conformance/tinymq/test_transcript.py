"""Every type of the API with its fields, defaults and data, and every text of its errors."""

import re
from base64 import b64encode

import pytest

from tests.conformance.tinymq.client import Tinymq, told
from tests.conformance.tinymq.conftest import LINE_BYTES_MAX

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class TestTopics:
    def test_a_topic_has_one_partition_unless_told(self, tinymq: Tinymq, topic: str) -> None:
        assert tinymq.data("createTopic", topic=f"{topic}-one") == {"topic": f"{topic}-one", "partitions": 1}

    def test_creating_a_topic_again_changes_nothing(self, tinymq: Tinymq, topic: str) -> None:
        tinymq.data("produce", topic=topic, value="kept", partition=0)
        assert tinymq.data("createTopic", topic=topic, partitions=2) == {"topic": topic, "partitions": 2}
        assert len(tinymq.data("fetch", topic=topic, partition=0, offset=0)["records"]) == 1

    def test_creating_a_topic_again_with_other_partitions_is_a_conflict(self, tinymq: Tinymq, topic: str) -> None:
        tinymq.data("produce", topic=topic, value="kept", partition=0)
        error = tinymq.error("createTopic", topic=topic, partitions=3)
        assert error.startswith(f"Topic {topic} already exists with other settings")
        assert len(tinymq.data("fetch", topic=topic, partition=0, offset=0)["records"]) == 1

    def test_topics_are_listed_by_name_without_the_brokers_own(self, tinymq: Tinymq, topic: str) -> None:
        tinymq.data("createTopic", topic=f"{topic}-b")
        tinymq.data("createTopic", topic=f"{topic}-a")
        topics = tinymq.data("listTopics")["topics"]
        assert [name for name in topics if name.startswith(topic)] == [topic, f"{topic}-a", f"{topic}-b"]
        assert not [name for name in topics if name.startswith("__")]

    def test_a_deleted_topic_is_gone_with_its_records_and_offsets(self, tinymq: Tinymq, topic: str, group: str) -> None:
        tinymq.data("produce", topic=topic, value="a", partition=0)
        tinymq.data("commit", groupId=group, topic=topic, partition=0, offset=1)
        assert tinymq.data("deleteTopic", topic=topic) == {"topic": topic}
        assert topic not in tinymq.data("listTopics")["topics"]
        assert tinymq.error("deleteTopic", topic=topic) == f"TopicNotFound: {topic}"
        tinymq.data("createTopic", topic=topic)
        metrics = tinymq.data("metrics", topic=topic, partition=0, groupId=group)
        assert (metrics["endOffset"], metrics["committedOffset"]) == (0, None)


class TestRecords:
    def test_a_produced_record_comes_back_with_its_place(self, tinymq: Tinymq, topic: str) -> None:
        record = tinymq.data("produce", topic=topic, value="hello", key="k", partition=1)
        assert ISO.fullmatch(record.pop("timestamp"))
        assert record == {"offset": 0, "value": "hello", "key": "k", "partition": 1}
        record = tinymq.data("produce", topic=topic, value="", partition=1)
        assert (record["offset"], record["key"], record["value"]) == (1, None, "")

    def test_fetched_records_are_the_produced_ones_without_the_partition(self, tinymq: Tinymq, topic: str) -> None:
        produced = [tinymq.data("produce", topic=topic, value=f"v{n}", key="k", partition=0) for n in range(3)]
        for record in produced:
            assert record.pop("partition") == 0
        assert tinymq.data("fetch", topic=topic, partition=0, offset=0) == {"records": produced}
        assert tinymq.data("fetch", topic=topic, partition=0, offset=1, max=1) == {"records": produced[1:2]}

    def test_a_key_has_one_partition_and_no_key_takes_turns(self, tinymq: Tinymq, topic: str) -> None:
        assert len({tinymq.data("produce", topic=topic, value="v", key="same")["partition"] for _ in range(4)}) == 1
        assert {tinymq.data("produce", topic=topic, value="v")["partition"] for _ in range(4)} == {0, 1}
        assert {tinymq.data("produce", topic=topic, value="v", key="")["partition"] for _ in range(4)} == {0, 1}

    def test_a_fetch_gives_a_hundred_records_unless_told(self, tinymq: Tinymq, topic: str) -> None:
        for n in range(120):
            tinymq.send(b'{"type":"produce","topic":"%s","value":"%d","partition":0}\n' % (topic.encode(), n))
        for _ in range(120):
            tinymq.read()
        assert len(tinymq.data("fetch", topic=topic, partition=0, offset=0)["records"]) == 100
        assert len(tinymq.data("fetch", topic=topic, partition=0, offset=0, max=1000)["records"]) == 120

    @pytest.mark.parametrize("offset", [1, 2, 1000, 2**62])
    def test_at_or_past_the_end_there_is_nothing(self, tinymq: Tinymq, topic: str, offset: int) -> None:
        tinymq.data("produce", topic=topic, value="only", partition=0)
        assert tinymq.data("fetch", topic=topic, partition=0, offset=offset) == {"records": []}

    def test_text_of_any_script_and_control_characters_survive(self, tinymq: Tinymq, topic: str) -> None:
        value = 'grüße 🚰 \u0000\n\t"quoted" \u2028'
        tinymq.data("produce", topic=topic, value=value, key="ключ", partition=0)
        (record,) = tinymq.data("fetch", topic=topic, partition=0, offset=0)["records"]
        assert (record["value"], record["key"]) == (value, "ключ")

    def test_bytes_that_are_not_utf8_go_as_base64_both_ways(self, tinymq: Tinymq, topic: str) -> None:
        value, key = b64encode(b"\xff\x00\xfe").decode(), b64encode(b"\x80").decode()
        given = {"value": value, "encoding": "base64", "key": key, "keyEncoding": "base64"}
        produced = tinymq.data("produce", topic=topic, partition=0, **given)
        assert {name: produced[name] for name in given} == given
        (record,) = tinymq.data("fetch", topic=topic, partition=0, offset=0)["records"]
        assert {name: record[name] for name in given} == given

    def test_text_that_was_sent_as_base64_is_text_to_a_reader(self, tinymq: Tinymq, topic: str) -> None:
        tinymq.data("produce", topic=topic, partition=0, value=b64encode(b"plain").decode(), encoding="base64")
        (record,) = tinymq.data("fetch", topic=topic, partition=0, offset=0)["records"]
        assert record["value"] == "plain"
        assert "encoding" not in record

    def test_text_beside_which_no_encoding_stands_is_not_decoded(self, tinymq: Tinymq, topic: str) -> None:
        tinymq.data("produce", topic=topic, partition=0, value="cGxhaW4=")
        (record,) = tinymq.data("fetch", topic=topic, partition=0, offset=0)["records"]
        assert record["value"] == "cGxhaW4="


class TestOffsets:
    def test_metrics_tell_what_is_there_and_how_far_a_group_is_behind(
        self, tinymq: Tinymq, topic: str, group: str
    ) -> None:
        for _ in range(5):
            tinymq.data("produce", topic=topic, value="v", partition=0)
        whole = {"beginOffset": 0, "endOffset": 5, "size": 5, "committedOffset": None, "lag": 5}
        assert tinymq.data("metrics", topic=topic, partition=0) == whole
        assert tinymq.data("metrics", topic=topic, partition=0, groupId=group) == whole
        assert tinymq.data("commit", groupId=group, topic=topic, partition=0, offset=3) == {"groupId": group}
        assert tinymq.data("metrics", topic=topic, partition=0, groupId=group) == {
            **whole,
            "committedOffset": 3,
            "lag": 2,
        }

    def test_a_commit_may_go_back_and_past_the_end(self, tinymq: Tinymq, topic: str, group: str) -> None:
        for _ in range(3):
            tinymq.data("produce", topic=topic, value="v", partition=0)
        for offset in (3, 1, 0, 5, 10**18):
            tinymq.data("commit", groupId=group, topic=topic, partition=0, offset=offset)
            metrics = tinymq.data("metrics", topic=topic, partition=0, groupId=group)
            assert (metrics["committedOffset"], metrics["lag"]) == (offset, 3 - offset)
            tinymq.data("fetch", topic=topic, partition=0, offset=offset)

    @pytest.mark.parametrize("offset", [-1, -(10**18)])
    def test_a_commit_below_0_is_refused_and_changes_nothing(
        self, tinymq: Tinymq, topic: str, group: str, offset: int
    ) -> None:
        tinymq.data("produce", topic=topic, value="v", partition=0)
        tinymq.data("commit", groupId=group, topic=topic, partition=0, offset=1)
        error = tinymq.error("commit", groupId=group, topic=topic, partition=0, offset=offset)
        assert error == f"InvalidOffset: {offset}"
        assert tinymq.data("metrics", topic=topic, partition=0, groupId=group)["committedOffset"] == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("line", "error"),
        [
            ("{}", "Missing type"),
            ('{"type": null}', "Missing type"),
            ('{"topic": "t"}', "Missing type"),
            ('{"type": "explode"}', "Unknown type: explode"),
            ('{"type": "Produce"}', "Unknown type: Produce"),
            ('{"type": ""}', "Unknown type: "),
            ('{"type": 5}', "Unknown type: 5"),
            ('{"type": "createTopic"}', "Missing topic"),
            ('{"type": "createTopic", "topic": ""}', "Missing topic"),
            ('{"type": "createTopic", "topic": null}', "Missing topic"),
            ('{"type": "deleteTopic"}', "Missing topic"),
            ('{"type": "produce"}', "Missing topic or value"),
            ('{"type": "produce", "topic": "t"}', "Missing topic or value"),
            ('{"type": "produce", "topic": "t", "value": null}', "Missing topic or value"),
            ('{"type": "produce", "value": "v"}', "Missing topic or value"),
            ('{"type": "fetch", "topic": "t", "partition": 0}', "Missing topic/partition/offset"),
            ('{"type": "fetch", "topic": "t", "offset": 0}', "Missing topic/partition/offset"),
            ('{"type": "fetch", "partition": 0, "offset": 0}', "Missing topic/partition/offset"),
            ('{"type": "commit", "topic": "t", "partition": 0, "offset": 0}', "Missing groupId/topic/partition/offset"),
            ('{"type": "commit", "groupId": "g", "topic": "t"}', "Missing groupId/topic/partition/offset"),
            ('{"type": "metrics", "topic": "t"}', "Missing topic/partition"),
            ('{"type": "metrics", "partition": 0}', "Missing topic/partition"),
            ('{"type": "joinGroup", "groupId": "g", "topic": "t"}', "Missing groupId/topic/consumerId"),
            ('{"type": "joinGroup", "consumerId": "c", "topic": "t"}', "Missing groupId/topic/consumerId"),
            ('{"type": "leaveGroup", "groupId": "g"}', "Missing groupId/consumerId"),
            ('{"type": "heartbeat", "consumerId": "c"}', "Missing groupId/consumerId"),
            ('{"type": "heartbeat", "groupId": "nobody", "consumerId": "c"}', "Group not found"),
            ('{"type": "produce", "topic": "absent", "value": "v"}', "TopicNotFound: absent"),
            ('{"type": "fetch", "topic": "absent", "partition": 0, "offset": 0}', "TopicNotFound: absent"),
            ('{"type": "metrics", "topic": "absent", "partition": 0}', "TopicNotFound: absent"),
            (
                '{"type": "commit", "groupId": "g", "topic": "absent", "partition": 0, "offset": 0}',
                "TopicNotFound: absent",
            ),
            ('{"type": "joinGroup", "groupId": "g", "topic": "absent", "consumerId": "c"}', "TopicNotFound: absent"),
        ],
    )
    def test_what_is_missing_or_not_there_is_said_in_the_known_words(
        self, tinymq: Tinymq, line: str, error: str
    ) -> None:
        assert told(tinymq.line(line)) == error

    @pytest.mark.parametrize("partition", [2, -1, 2**40])
    def test_a_partition_that_is_not_there_is_named(
        self, tinymq: Tinymq, topic: str, group: str, partition: int
    ) -> None:
        expected = f"PartitionNotFound: {topic}/{partition}"
        assert tinymq.error("produce", topic=topic, value="v", partition=partition) == expected
        assert tinymq.error("fetch", topic=topic, partition=partition, offset=0) == expected
        assert tinymq.error("metrics", topic=topic, partition=partition) == expected
        assert tinymq.error("commit", groupId=group, topic=topic, partition=partition, offset=0) == expected

    def test_an_offset_below_the_start_is_named(self, tinymq: Tinymq, topic: str) -> None:
        assert tinymq.error("fetch", topic=topic, partition=0, offset=-1) == "InvalidOffset: -1"

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"type": "fetch", "offset": "0"}, "Invalid offset: give an integer, not a string"),
            ({"type": "fetch", "offset": 0.0}, "Invalid offset: give an integer, not a fraction"),
            ({"type": "fetch", "offset": True}, "Invalid offset: give an integer, not true or false"),
            (
                {"type": "fetch", "offset": 0, "partition": False},
                "Invalid partition: give an integer, not true or false",
            ),
            ({"type": "fetch", "offset": 0, "max": "9"}, "Invalid max: give an integer, not a string"),
            ({"type": "fetch", "offset": 0, "max": 0}, "Invalid max: give 1 or more, not 0"),
            ({"type": "fetch", "offset": 2**63}, "Invalid offset: the number is too large"),
            ({"type": "produce", "value": 5}, "Invalid value: give a string, not a number"),
            ({"type": "produce", "value": {"a": 1}}, "Invalid value: give a string, not an object"),
            ({"type": "produce", "value": "v", "key": ["k"]}, "Invalid key: give a string, not an array"),
            ({"type": "produce", "value": "!", "encoding": "base64"}, "Invalid value: it is not base64"),
            (
                {"type": "produce", "value": "!", "encoding": "hex"},
                'Invalid encoding: give "base64", or leave it out for text',
            ),
            ({"type": "createTopic", "partitions": 0}, "Invalid partitions: a topic has 1 to 10000, not 0"),
            ({"type": "createTopic", "partitions": -1}, "Invalid partitions: a topic has 1 to 10000, not -1"),
            ({"type": "createTopic", "partitions": "2"}, "Invalid partitions: give an integer, not a string"),
        ],
    )
    def test_a_field_of_the_wrong_kind_is_named(
        self, tinymq: Tinymq, topic: str, fields: dict[str, object], error: str
    ) -> None:
        asked = {"topic": topic, **({"partition": 0} if fields["type"] == "fetch" else {}), **fields}
        assert tinymq.error(str(asked.pop("type")), **asked) == error

    def test_what_is_missing_is_said_before_what_is_wrong(self, tinymq: Tinymq) -> None:
        assert tinymq.error("fetch", partition="x") == "Missing topic/partition/offset"

    def test_a_field_that_the_type_does_not_use_may_be_anything(self, tinymq: Tinymq) -> None:
        assert "topics" in tinymq.data("listTopics", partition="x", offset=[], max=1.5, more={"a": None})

    def test_a_name_that_no_topic_may_have_is_refused_with_a_sentence(self, tinymq: Tinymq) -> None:
        assert "has a character other than" in tinymq.error("createTopic", topic="a b")

    @pytest.mark.parametrize(
        "line",
        [
            b"{",
            b"hello",
            b"[]",
            b"5",
            b'"produce"',
            b"null",
            b"{'type': 'listTopics'}",
            b'{"type": "listTopics"} {"type": "listTopics"}',
            b'{"type": "listTopics",}',
            b'{"type": NaN}',
            b"\xff\xfe\x00\x01",
            b'{"type": "\xff"}',
            b'{"type": "\\ud800"}',
            b"\x00",
            b'{"type": "a\x00b"}',
            b'{"x": ' + b"[" * 5_000 + b"}",
            b'{"x": ' + b'{"x": ' * 5_000,
        ],
    )
    def test_what_is_no_request_is_invalid_json_and_the_connection_stays_usable(
        self, tinymq: Tinymq, line: bytes
    ) -> None:
        assert told(tinymq.line(line)).startswith("Invalid JSON: ")
        assert "topics" in tinymq.data("listTopics")

    def test_a_line_over_the_limit_is_an_error_and_the_rest_of_it_is_skipped(self, tinymq: Tinymq, topic: str) -> None:
        tinymq.send(b'{"type": "produce", "topic": "' + topic.encode() + b'", "value": "' + b"x" * (3 * LINE_BYTES_MAX))
        assert told(tinymq.read()).startswith(f"Line too long: at most {LINE_BYTES_MAX} bytes")
        tinymq.send(
            b"x" * (3 * LINE_BYTES_MAX) + b'"}\n{"type": "metrics", "topic": "%s", "partition": 0}\n' % topic.encode()
        )
        assert tinymq.read()["data"]["endOffset"] == 0

    def test_blank_lines_are_ignored(self, tinymq: Tinymq) -> None:
        tinymq.send(b'\n\r\n   \n\t\n{"type": "listTopics"}\r\n\n')
        assert "topics" in tinymq.read()["data"]
        assert "topics" in tinymq.data("listTopics")
