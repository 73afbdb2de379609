"""The tables of what security costs, and what is compared."""

from bench.security.loads import BY_NAME, Sample
from bench.security.run import COMPARISONS, ORDER, SecurityReport, systems_of
from bench.security.tables import markdown


def sample(system: str, turn: int, *, cpu_us: float, load: str = "produce-100", value_bytes: int = 100) -> Sample:
    return Sample(system, load, turn, 1000, 1000 * value_bytes, 1.0, cpu_us / 1000)


def cells_of(tables: str, title: str, load: str = "produce-100") -> list[str]:
    section = tables.split(f"#### {title}\n")[1].split("####", maxsplit=1)[0]
    (line,) = (line for line in section.splitlines() if line.startswith(f"| {load} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_comparison_is_of_systems_and_loads_that_exist() -> None:
    for each in COMPARISONS:
        assert {each.base, each.other} <= set(ORDER)
        assert set(each.loads) <= set(BY_NAME)


def test_a_load_runs_on_the_systems_of_its_comparisons_only() -> None:
    assert systems_of("produce-1m") == ["open", "sealed"]
    assert systems_of("http") == ["open", "rules", "tls", "all"]
    assert systems_of("connect") == ["open", "rules", "tls", "kafka", "kafka-tls"]


def test_a_ratio_is_of_two_measurements_of_one_round() -> None:
    report = SecurityReport({})
    # The machine is slower from round to round, which changes no ratio.
    for turn, slow in enumerate((1, 2, 3)):
        report.samples += [sample("rules", turn, cpu_us=10.0 * slow), sample("tls", turn, cpu_us=15.0 * slow)]
    assert cells_of(markdown(report), "TLS in Penstock") == [
        "produce-100",
        "20.0",
        "30.0",
        "200",
        "300",
        "1.50",
        "1.50 to 1.50",
    ]


def test_a_round_with_only_one_of_the_two_counts_for_no_ratio() -> None:
    report = SecurityReport({})
    report.samples += [sample("open", turn, cpu_us=10.0) for turn in (0, 1, 2)]
    report.samples += [sample("rules", turn, cpu_us=cpu_us) for turn, cpu_us in ((0, 12.0), (2, 14.0), (3, 90.0))]
    assert cells_of(markdown(report), "A login and 5,000 access rules")[-2:] == ["1.30", "1.20 to 1.40"]


def test_a_ratio_that_the_rounds_do_not_agree_on_is_marked() -> None:
    report = SecurityReport({})
    report.samples += [sample("open", turn, cpu_us=10.0) for turn in (0, 1, 2)]
    report.samples += [sample("sealed", turn, cpu_us=cpu_us) for turn, cpu_us in enumerate((9.0, 11.0, 12.0))]
    report.samples += [sample("all", 0, cpu_us=20.0)]
    tables = markdown(report)
    assert cells_of(tables, "Encryption at rest")[-2:] == ["1.10 ~", "0.90 to 1.20"]
    assert cells_of(tables, "All of it")[-2:] == ["2.00 ~", "2.00 to 2.00"]


def test_a_load_without_records_has_no_cost_per_mb() -> None:
    report = SecurityReport({})
    for turn in (0, 1):
        report.samples += [
            sample("kafka", turn, cpu_us=100.0, load="connect", value_bytes=0),
            sample("kafka-tls", turn, cpu_us=400.0, load="connect", value_bytes=0),
        ]
    cells = cells_of(markdown(report), "TLS in Apache Kafka", "connect")
    assert cells == ["connect", "100", "400", "-", "-", "4.00", "4.00 to 4.00"]


def test_what_was_not_measured_has_no_table_and_is_named() -> None:
    report = SecurityReport({"processor": "2 x any"}, missing={"Apache Kafka": "no java on the PATH"})
    report.samples += [sample("rules", 0, cpu_us=1.0), sample("tls", 0, cpu_us=2.0)]
    report.failures.append("Penstock, encryption at rest: it did not start")
    tables = markdown(report)
    assert "#### TLS in Apache Kafka" not in tables
    assert "- Apache Kafka: not measured, no java on the PATH\n" in tables
    assert "- processor: 2 x any\n" in tables
    assert tables.endswith("#### What failed\n\n- Penstock, encryption at rest: it did not start\n")
