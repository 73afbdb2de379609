"""Counters that cost little and cannot grow without bound."""

import pytest

from penstock.meters import (
    FREE_CHARS_MAX,
    FREE_VALUES_MAX,
    LABEL_SETS_MAX,
    LATENCIES_MAX,
    OTHER,
    SAMPLE_MS,
    SAMPLES_KEPT,
    Counts,
    Histogram,
    Meters,
)
from penstock.types import Gateway


def test_each_label_set_has_a_count_of_its_own() -> None:
    counts = Counts("topic", "group")
    counts.add(("t", "a"))
    counts.add(("t", "b"), 3)
    counts.add(("t", "a"), 2)
    assert dict(counts.items()) == {("t", "a"): 3, ("t", "b"): 3}
    assert counts.total == 6


def test_a_wrong_number_of_labels_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="labels"):
        Counts("topic", "group").add(("t",))


def test_label_sets_past_the_limit_count_as_other() -> None:
    counts = Counts("topic", sets_max=2)
    for topic in ("a", "b", "c", "d", "a"):
        counts.add((topic,))
    assert dict(counts.items()) == {("a",): 2, ("b",): 1, (OTHER,): 2}


def test_a_clients_own_words_are_cut_and_only_so_many_are_kept_for_each_subject() -> None:
    counts = Counts("topic", "group", "reason", free_text=True)
    for number in range(FREE_VALUES_MAX + 30):
        counts.add(("t", "g", f"{number:03} " + "x" * 1000))
    counts.add(("t", "h", "still room"))
    of_g = {labels: count for labels, count in counts.items() if labels[1] == "g"}
    assert len(of_g) == FREE_VALUES_MAX + 1
    assert of_g["t", "g", OTHER] == 30
    assert max(len(reason) for _, _, reason in of_g) == FREE_CHARS_MAX
    assert counts.get(("t", "h", "still room")) == 1


def test_a_text_that_was_cut_goes_on_counting_as_itself() -> None:
    counts = Counts("topic", "reason", free_text=True)
    for _ in range(3):
        counts.add(("t", "x" * 1000))
    assert dict(counts.items()) == {("t", "x" * FREE_CHARS_MAX): 3}


def test_a_lone_surrogate_becomes_something_that_can_be_written() -> None:
    counts = Counts("topic", "reason", free_text=True)
    counts.add(("t", "\ud800"))
    assert [labels[1].encode() for labels, _ in counts.items()] == [b"?"]


def test_what_is_deleted_takes_its_numbers_with_it_and_makes_room() -> None:
    counts = Counts("topic", "group", "reason", free_text=True, sets_max=FREE_VALUES_MAX + 2)
    for number in range(FREE_VALUES_MAX + 1):
        counts.add(("t", "g", str(number)))
    counts.add(("u", "g", "kept"))
    counts.forget("topic", "t")
    assert dict(counts.items()) == {("u", "g", "kept"): 1}
    counts.add(("t", "g", "again"))
    assert counts.get(("t", "g", "again")) == 1
    counts.forget("group", "g")
    counts.forget("nothing of the kind", "g")
    assert len(counts) == 0


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 1.0, 7.0):
        histogram.observe(seconds)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [2, 4, 5]
    assert histogram.count == 5
    assert histogram.sum == pytest.approx(8.65)


def test_many_that_took_the_same_time_are_observed_at_once() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 4)
    assert (histogram.counts, histogram.sum) == ([4, 0], 2.0)


def test_flows_past_the_limit_are_those_of_other_topics() -> None:
    meters = Meters()
    for number in range(LABEL_SETS_MAX):
        meters.flow(f"t{number}", Gateway.HTTP)
    meters.took_in("one more", Gateway.HTTP, 2, 10)
    meters.took_in("and another", Gateway.HTTP, 3, 10)
    flows = dict(meters.flows())
    assert flows[OTHER, "http"].records_in == 5
    assert len(flows) == LABEL_SETS_MAX + 1


def test_apis_past_the_limit_share_a_histogram() -> None:
    meters = Meters()
    for number in range(LATENCIES_MAX):
        meters.latency(Gateway.HTTP, str(number))
    assert meters.latency(Gateway.HTTP, "a") is meters.latency(Gateway.HTTP, "b")
    assert meters.latency(Gateway.HTTP, "0") is not meters.latency(Gateway.HTTP, "1")


def test_a_deleted_topic_and_a_deleted_group_are_forgotten_everywhere() -> None:
    meters = Meters()
    meters.took_in("t", Gateway.KAFKA, 1, 1)
    for counts in (meters.acks, meters.leases, meters.redeliveries, meters.lease_timeouts):
        counts.add(("t", "g"))
        counts.add(("u", "g"))
    meters.dead_letters.add(("t", "why"))
    meters.nacks.add(("u", "h", "why"))
    meters.forget_topic("t")
    assert list(meters.flows()) == []
    assert dict(meters.acks.items()) == {("u", "g"): 1}
    assert len(meters.dead_letters) == 0
    meters.forget_group("g")
    assert len(meters.acks) + len(meters.leases) + len(meters.redeliveries) + len(meters.lease_timeouts) == 0
    assert len(meters.nacks) == 1


def test_rates_are_over_the_last_minute_and_over_all_gateways() -> None:
    meters = Meters()
    assert meters.next_deadline_ms() == 0
    for turn in range(20):
        now_ms = turn * SAMPLE_MS
        meters.tick(now_ms)
        assert meters.next_deadline_ms() == now_ms + SAMPLE_MS
        # Ten seconds later there will be so many more.
        meters.took_in("t", Gateway.KAFKA, 100, 1000)
        meters.gave_out("t", Gateway.HTTP, 50, 500)
    now_ms += SAMPLE_MS
    assert meters.rates("t", now_ms) == pytest.approx((10, 100, 5, 50))
    assert meters.rates("unknown", now_ms) == (0, 0, 0, 0)
    for turn in range(1, SAMPLES_KEPT + 1):
        meters.tick(now_ms + turn * SAMPLE_MS)
    assert meters.rates("t", now_ms + (SAMPLES_KEPT + 1) * SAMPLE_MS) == (0, 0, 0, 0)


def test_a_topic_that_began_since_the_last_sample_has_a_rate_too() -> None:
    meters = Meters()
    meters.tick(0)
    meters.took_in("t", Gateway.KAFKA, 20, 200)
    assert meters.rates("t", 2000)[:2] == (10, 100)


def test_syncs_that_fail_are_counted_apart() -> None:
    meters = Meters()
    meters.synced(0.002, failed=False)
    meters.synced(9.0, failed=True)
    assert (meters.sync_seconds.count, meters.sync_errors) == (1, 1)
