from dataclasses import replace
from pathlib import Path

import pytest

from penstock.address import Address
from penstock.core.broker_config import BROKER_CONFIGS
from penstock.core.dynamic_configs import ALL_BROKERS, ConfigResource, ResourceKind
from penstock.core.groups.configs import GROUP_CONFIGS
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.config_table import TOPIC_CONFIGS
from penstock.errors import Reason
from penstock.settings import Authentication, SecuritySettings, TlsSettings, TopicSettings
from penstock.transport.tls import ServerTls
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_configs_generated import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
)
from tests.support.certificates import Authority
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.DESCRIBE_CONFIGS
TOPIC, BROKER, GROUP = 2, 4, 32


async def ask(
    node: KafkaNode,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResponseResult:
    request = DescribeConfigsRequest([DescribeConfigsRequestResource(kind, name, keys)], synonyms, documentation)
    [result] = (await node.ask(KEY, request, version)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def by_name(result: DescribeConfigsResponseResult) -> dict[str, DescribeConfigsResponseConfig]:
    assert result.error_code == 0
    return {config.name: config for config in result.configs}


@pytest.mark.parametrize("version", versions(KEY))
async def test_every_config_of_a_topic_is_told_in_every_version(node: KafkaNode, version: int) -> None:
    await node.create("t", retention_ms="5")
    configs = by_name(await ask(node, TOPIC, "t", version=version))
    assert list(configs) == list(TOPIC_CONFIGS)
    assert (configs["retention.ms"].value, configs["cleanup.policy"].value) == ("5", "delete")
    if version == 0:
        assert (configs["retention.ms"].is_default, configs["cleanup.policy"].is_default) == (False, True)
    else:
        assert (configs["retention.ms"].config_source, configs["cleanup.policy"].config_source) == (1, 5)
    assert not any(config.is_sensitive for config in configs.values())
    if version >= 3:
        kinds = {name: configs[name].config_type for name in ("preallocate", "cleanup.policy", "segment.bytes")}
        assert kinds == {"preallocate": 1, "cleanup.policy": 7, "segment.bytes": 3}


async def test_only_the_keys_asked_for_are_told(node: KafkaNode) -> None:
    await node.create("t")
    assert list(by_name(await ask(node, TOPIC, "t", ["segment.ms", "nonsense"]))) == ["segment.ms"]
    assert len(by_name(await ask(node, TOPIC, "t", []))) == len(TOPIC_CONFIGS)


async def test_synonyms_and_documentation_are_told_when_asked_for(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path / "sub", topic_defaults={"retention.ms": "7"}) as node:
        await node.create("t", retention_ms="5")
        await node.create("u")
        told = by_name(await ask(node, TOPIC, "t", synonyms=True, documentation=True))["retention.ms"]
        assert [(one.name, one.value, one.source) for one in told.synonyms] == [
            ("retention.ms", "5", 1),
            ("log.retention.ms", "7", 4),
            ("log.retention.ms", "604800000", 5),
        ]
        assert told.documentation
        silent = by_name(await ask(node, TOPIC, "u"))["retention.ms"]
        assert (silent.value, silent.config_source, silent.synonyms, silent.documentation) == ("7", 4, [], None)


async def test_the_broker_tells_its_settings_and_which_can_change(tmp_path: Path) -> None:
    topics, defaults = TopicSettings(auto_create=False, partitions=3), {"retention.ms": "7200000"}
    async with KafkaNode(tmp_path / "sub", topics=topics, topic_defaults=defaults) as node:
        configs = by_name(await ask(node, BROKER, str(NODE), synonyms=True, documentation=True))
        assert list(configs) == sorted(configs)
        values = {name: config.value for name, config in configs.items()}
        assert (
            values.items()
            >= {
                "node.id": str(NODE),
                "log.dirs": str(tmp_path / "sub"),
                "advertised.listeners": "PLAINTEXT://127.0.0.1:9092",
                "auto.create.topics.enable": "false",
                "num.partitions": "3",
                "default.replication.factor": "1",
                "offsets.topic.num.partitions": "1",
                "message.max.bytes": "1048588",
                "log.retention.ms": "7200000",
                "log.retention.minutes": "120",
                "log.retention.hours": "2",
                "log.cleanup.policy": "delete",
                "socket.request.max.bytes": "104857600",
            }.items()
        )
        assert all(config.documentation for config in configs.values())
        assert {name for name, config in configs.items() if not config.read_only} == set(BROKER_CONFIGS)
        names = ("num.partitions", "message.max.bytes", "advertised.listeners")
        assert [configs[name].config_source for name in names] == [4, 5, 4]
        assert [(one.value, one.source) for one in configs["num.partitions"].synonyms] == [("3", 4), ("1", 5)]


async def test_the_listener_is_shown_with_its_protocol(tmp_path: Path) -> None:
    pair = Authority(tmp_path).server()
    tls = ServerTls(TlsSettings(cert_file=str(pair.certificate), key_file=str(pair.key)), lambda _: "")
    required = SecuritySettings(authentication=Authentication.REQUIRED, super_users="User:ANONYMOUS")
    for security, encryption, shown in (
        (SecuritySettings(), tls, "SSL"),
        (required, None, "SASL_PLAINTEXT"),
        (required, tls, "SASL_SSL"),
    ):
        async with KafkaNode(tmp_path / shown, security=security) as node:
            node.listener = replace(node.listener, tls=encryption)
            configs = by_name(await ask(node, BROKER, str(NODE), ["advertised.listeners"]))
            assert configs["advertised.listeners"].value == f"{shown}://127.0.0.1:9092"


@pytest.mark.parametrize(("listens", "told"), [(None, ""), (Address("0.0.0.0", 8080), "0.0.0.0:8080")])
async def test_the_broker_tells_where_its_http_api_listens(node: KafkaNode, listens, told) -> None:
    node.broker.http = listens
    configs = by_name(await ask(node, BROKER, str(NODE), ["penstock.http.listeners"], documentation=True))
    assert configs["penstock.http.listeners"].value == told
    assert configs["penstock.http.listeners"].read_only


async def test_what_is_set_while_the_broker_runs_is_told_with_its_source(node: KafkaNode) -> None:
    assert by_name(await ask(node, BROKER, "")) == {}
    await node.create("t")
    for resource, value in ((ALL_BROKERS, "5"), (ConfigResource(ResourceKind.BROKER, str(NODE)), "6")):
        await node.broker.configs.alter(resource, [ConfigChange("log.retention.ms", ChangeKind.SET, value)])
    [told] = (await ask(node, BROKER, "")).configs
    assert (told.name, told.value, told.config_source, told.read_only) == ("log.retention.ms", "5", 3, False)
    told = by_name(await ask(node, BROKER, str(NODE), synonyms=True))["log.retention.ms"]
    assert [(one.value, one.source) for one in told.synonyms] == [("6", 2), ("5", 3), ("604800000", 5)]
    told = by_name(await ask(node, TOPIC, "t", synonyms=True))["retention.ms"]
    assert [(one.value, one.source) for one in told.synonyms] == [("6", 2), ("5", 3), ("604800000", 5)]


async def test_every_config_of_a_group_is_told(node: KafkaNode) -> None:
    change = ConfigChange("share.delivery.count.limit", ChangeKind.SET, "7")
    await node.broker.configs.alter(ConfigResource(ResourceKind.GROUP, "g"), [change])
    configs = by_name(await ask(node, GROUP, "g"))
    assert list(configs) == list(GROUP_CONFIGS)
    told = configs["share.delivery.count.limit"]
    assert (told.value, told.config_source, told.read_only) == ("7", 8, False)
    assert configs["consumer.session.timeout.ms"].config_source == 5
    assert by_name(await ask(node, GROUP, "other"))["share.delivery.count.limit"].value == "5"


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        (TOPIC, "nobody", Reason.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", Reason.INVALID_TOPIC),
        (BROKER, "99", Reason.INVALID_REQUEST),
        (BROKER, "seven", Reason.INVALID_REQUEST),
        (8, str(NODE), Reason.INVALID_REQUEST),
        (32, "", Reason.INVALID_GROUP_ID),
        (77, "what", Reason.INVALID_REQUEST),
    ],
)
async def test_what_has_no_configs_is_refused_with_a_text(
    node: KafkaNode, kind: int, name: str, reason: Reason
) -> None:
    result = await ask(node, kind, name)
    assert (reason_of(result.error_code), result.configs) == (reason, [])
    assert result.error_message


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_list_that_is_too_long_for_the_version_is_null_and_the_rest_is_there(
    node: KafkaNode, version: int
) -> None:
    name = "leader.replication.throttled.replicas"
    lists = {length: ",".join(f"{10_000 + n}:1" for n in range(length)) for length in (4096, 4097)}
    assert len(lists[4096]) == 2**15 - 1
    for length, text in lists.items():
        await node.create(f"t{length}", **{name.replace(".", "_"): text})
    fits, too_long = [by_name(await ask(node, TOPIC, f"t{length}", version=version, synonyms=True)) for length in lists]
    assert fits[name].value == lists[4096]
    assert too_long[name].value == (lists[4097] if version >= 4 else None)
    assert (too_long["retention.ms"].value, too_long["cleanup.policy"].value) == ("604800000", "delete")


async def test_the_address_of_an_http_listener_with_tls_has_its_scheme(node) -> None:
    node.broker.http = Address("127.0.0.1", 8443)
    node.broker.is_http_tls = True
    configs = by_name(await ask(node, BROKER, str(NODE), ["penstock.http.listeners"]))
    assert configs["penstock.http.listeners"].value == "https://127.0.0.1:8443"
