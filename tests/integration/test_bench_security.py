"""Every row of the cost of security, for a moment, against real brokers with TLS, a login, access rules and encryption."""

import pytest

from bench.security.loads import BY_NAME, Limits
from bench.security.run import SecurityPlan, run, systems_of
from bench.security.systems import KAFKA, KAFKA_TLS
from bench.security.tables import markdown

MOMENT = Limits(seconds=0.0, warmup_s=0.0, bytes_max=1 << 20)


@pytest.fixture(scope="module")
def report():
    return run(
        SecurityPlan(only=[], with_kafka=False, rounds=1, warm_rounds=0, minutes=5.0, compile_s=0.0, limits=MOMENT)
    )


def test_every_row_is_measured_at_every_system(report) -> None:
    assert report.failures == []
    measured = {(sample.system, sample.load) for sample in report.samples}
    assert measured == {
        (system, load) for load in BY_NAME for system in systems_of(load) if system not in (KAFKA, KAFKA_TLS)
    }


def test_every_measurement_has_requests_and_their_cpu_time(report) -> None:
    for sample in report.samples:
        load = BY_NAME[sample.load]
        assert sample.requests >= load.window
        assert sample.value_bytes == sample.requests * load.value_bytes
        assert sample.cpu_s > 0


def test_the_section_shows_what_was_left_out(report) -> None:
    section = markdown(report)
    assert section.startswith("### Security\n")
    assert "- Apache Kafka: not measured, left out by --no-kafka" in section
    assert "#### All of it" in section
