"""Options that say what is not possible, and options that say nothing here."""

import logging

import pytest

from penstock.spark.errors import OptionError
from penstock.spark.options import SparkOptions
from penstock.spark.source.settings import REFUSED, batch_settings, check_general, stream_settings

NEEDED = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "a"}


def options(**more):
    return SparkOptions({**NEEDED, **{name.replace("__", "."): value for name, value in more.items()}})


def test_defaults_are_those_of_the_kafka_connector() -> None:
    settings = stream_settings(options())
    assert settings.fail_on_data_loss
    assert not settings.read_committed
    assert settings.group is None
    assert settings.trigger_delay_ms == 15 * 60_000
    assert settings.start.kind.value == "latest"
    assert batch_settings(options()).start.kind.value == "earliest"


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_would_change_what_is_read_are_refused_with_the_reason(name) -> None:
    with pytest.raises(OptionError, match=f"{name} is not supported: .+"):
        check_general(SparkOptions({**NEEDED, name.upper(): "x"}))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"minPartitions": "0"}, "minPartitions must be 1 or more"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be 1 or more"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be 1 or more"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, r"minOffsetsPerTrigger \(5\) is above"),
        ({"kafka__isolation__level": "strict"}, "read_committed or read_uncommitted, not 'strict'"),
        ({"kafka__security__protocol": "SASL_SSL"}, "requires credentials"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"includeHeaders": "2"}, "includeHeaders must be true or false"),
        ({"maxTriggerDelay": "later"}, "maxTriggerDelay must be a duration"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries: .* availableNow"),
        ({"endingOffsetsByTimestamp": "{}"}, "endingOffsetsByTimestamp is for batch queries"),
    ],
)
def test_a_stream_refuses(more, text) -> None:
    with pytest.raises(OptionError, match=text):
        stream_settings(options(**more))


def test_options_of_kafkas_client_that_do_nothing_are_taken_with_a_warning(caplog) -> None:
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        stream_settings(options(kafka__session__timeout__ms="1", kafka__isolation__level="read_committed"))
    assert "kafka.session.timeout.ms" in caplog.text
    assert "isolation" not in caplog.text


def test_options_of_streams_have_no_effect_in_a_batch_with_a_warning(caplog) -> None:
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        batch_settings(options(maxOffsetsPerTrigger="5"))
    assert "maxOffsetsPerTrigger is for streams" in caplog.text


def test_values_reach_the_settings() -> None:
    settings = stream_settings(
        options(
            kafka__isolation__level="READ_COMMITTED",
            kafka__group__id="g",
            failOnDataLoss="false",
            minPartitions="3",
            maxRecordsPerPartition="10",
            maxTriggerDelay="1m",
            kafkaConsumer__pollTimeoutMs="7",
        )
    )
    assert settings.read_committed
    assert settings.group == "g"
    assert not settings.fail_on_data_loss
    assert (settings.min_partitions, settings.partition_records_max) == (3, 10)
    assert (settings.trigger_delay_ms, settings.poll_timeout_ms) == (60_000, 7)
