"""The options of a sink: which are taken, which are refused and why."""

import pickle

import pytest

from penstock.records.batch import Compression
from penstock.spark.errors import OptionError
from penstock.spark.sink.settings import settings_of
from penstock.types import Acks


def test_all_options_have_defaults() -> None:
    settings = settings_of({})
    assert settings.topic is None
    assert settings.exactly_once
    assert not settings.keep_timestamp
    assert settings.compression is Compression.NONE
    assert settings.acks is Acks.ALL
    assert settings.batch_bytes is None
    assert (settings.sink_name, settings.batch_id) == (None, None)


def test_names_have_no_case_and_values_no_edges() -> None:
    settings = settings_of(
        {
            "TOPIC": " orders ",
            "exactlyonce": "False",
            "KEEPTIMESTAMP": "true",
            "Kafka.Compression.Type": "ZSTD",
            "kafka.ACKS": "1",
            "kafka.batch.size": "4096",
        }
    )
    assert settings.topic == "orders"
    assert not settings.exactly_once
    assert settings.keep_timestamp
    assert settings.compression is Compression.ZSTD
    assert settings.acks is Acks.LEADER
    assert settings.batch_bytes == 4096


def test_what_a_producer_has_and_this_sink_does_not_need_is_taken() -> None:
    settings_of(
        {
            "kafka.linger.ms": "5",
            "kafka.enable.idempotence": "true",
            "kafka.max.in.flight.requests.per.connection": "5",
            "kafka.retries": "3",
            "kafka.security.protocol": "PLAINTEXT",
            "kafka.max.request.size": "2000000",
            "includeHeaders": "true",
        }
    )


@pytest.mark.parametrize(
    "name",
    [
        "kafka.key.serializer",
        "kafka.value.serializer",
        "kafka.interceptor.classes",
        "kafka.partitioner.class",
        "kafka.transactional.id",
    ],
)
def test_what_would_change_the_sinks_own_work_is_refused_with_the_reason(name) -> None:
    with pytest.raises(OptionError, match=f"{name} is not supported: .+"):
        settings_of({name.upper(): "x"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "  "}, "'topic' is empty"),
        ({"exactlyOnce": "maybe"}, "true or false"),
        ({"kafka.compression.type": "brotli"}, "none, gzip, snappy, lz4, zstd"),
        ({"kafka.acks": "2"}, "all, -1, 1, 0"),
        ({"kafka.security.protocol": "SASL_SSL"}, "requires credentials"),
        ({"kafka.batch.size": "0"}, "1 or more"),
        ({"sinkName": "a/b"}, "letters, digits"),
        ({"sinkName": "x" * 201}, "1 to 200"),
        ({"batchId": "-1"}, "0 or more"),
        ({"sinkName": "x", "exactlyOnce": "false"}, "require exactlyOnce=true"),
    ],
)
def test_an_invalid_value_is_reported_with_what_to_write(options, said) -> None:
    with pytest.raises(OptionError, match=said):
        settings_of(options)


def test_settings_travel_to_tasks() -> None:
    settings = settings_of({"topic": "t", "kafka.bootstrap.servers": "127.0.0.1:1"})
    assert pickle.loads(pickle.dumps(settings)) == settings
