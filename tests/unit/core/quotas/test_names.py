"""What quotas can be set on, their keys in the store, and filters, by the rules of Kafka's own code."""

from typing import Any

import pytest

from penstock.core.quotas.names import (
    Place,
    PlaceFilter,
    check_changes,
    entity_of,
    place_at,
    place_of,
    store_key,
)
from penstock.errors import PenstockError, Reason
from penstock.limits import METADATA_KEY_BYTES_MAX, QUOTA_NAME_CHARS_MAX
from penstock.operations.quotas import EntityPart, Match, PartFilter

NAMES = ["anna", "<default>", "a/b", "a%2Fb", "é", "users/x", "\ud800"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_survives_the_store_and_is_no_other(name: str) -> None:
    entity = (EntityPart("user", name), EntityPart("client-id", None))
    place = place_of(entity)
    assert entity_of(place_at(store_key(place))) == entity
    assert store_key(place) != store_key(place_of((EntityPart("user", None), EntityPart("client-id", None))))


def test_different_entities_have_different_keys() -> None:
    entities = [
        (EntityPart(first, one), EntityPart(second, other))
        for first, second in (("user", "client-id"),)
        for one in [*NAMES, None]
        for other in [*NAMES, None]
    ]
    singles = [(EntityPart(kind, name),) for kind in ("user", "client-id") for name in [*NAMES, None]]
    keys = [store_key(place_of(entity)) for entity in (*entities, *singles)]
    assert len(set(keys)) == len(keys)


def test_the_longest_names_fit_into_a_key() -> None:
    name = "x" * QUOTA_NAME_CHARS_MAX
    key = store_key(place_of((EntityPart("user", name), EntityPart("client-id", name))))
    assert len(key) <= METADATA_KEY_BYTES_MAX
    with pytest.raises(PenstockError, match="longer than"):
        place_of((EntityPart("user", name + "x"),))


def test_an_address_has_one_key_however_it_is_written() -> None:
    assert place_of((EntityPart("ip", "2001:DB8:0::7"),)) == place_of((EntityPart("ip", "2001:db8::7"),))


@pytest.mark.parametrize(
    ("entity", "says"),
    [
        ((), "empty"),
        ((EntityPart("topic", "t"),), "no quota for 'topic'"),
        ((EntityPart("user", "a"), EntityPart("user", "b")), "twice"),
        ((EntityPart("ip", "192.0.2.1"), EntityPart("user", "a")), "cannot be combined"),
        ((EntityPart("user", ""),), "name of the user is empty"),
        ((EntityPart("ip", "example.org"),), "not an IP address"),
    ],
)
def test_entities_that_cannot_exist_are_refused(entity: Any, says: str) -> None:
    with pytest.raises(PenstockError, match=says) as refusal:
        place_of(entity)
    assert refusal.value.reason is Reason.INVALID_REQUEST


USER, ADDRESS = Place("anna"), Place(ip="192.0.2.1")


@pytest.mark.parametrize(
    ("place", "changes", "says"),
    [
        (USER, {"rate": 1.0}, "no quota 'rate'"),
        (USER, {"connection_creation_rate": 1.0}, "only be set on an ip"),
        (ADDRESS, {"producer_byte_rate": 1.0}, "only be set on a user"),
        (USER, {"producer_byte_rate": 0.0}, "greater than 0"),
        (USER, {"request_percentage": -1.0}, "greater than 0"),
        (USER, {"request_percentage": float("nan")}, "greater than 0"),
        (USER, {"request_percentage": float("inf")}, "greater than 0"),
        (USER, {"consumer_byte_rate": 1.5}, "whole number"),
    ],
)
def test_values_that_make_no_sense_are_refused(place: Place, changes: dict[str, float | None], says: str) -> None:
    with pytest.raises(PenstockError, match=says) as refusal:
        check_changes(place, changes)
    assert refusal.value.reason is Reason.INVALID_REQUEST


def test_values_that_kafka_takes_are_taken() -> None:
    check_changes(USER, {"request_percentage": 0.5, "controller_mutation_rate": 0.1, "producer_byte_rate": None})
    check_changes(ADDRESS, {"connection_creation_rate": 3.0})


PLACES = [
    Place("anna"),
    Place("<default>"),
    Place("anna", "app"),
    Place("anna", "<default>"),
    Place(None, "app"),
    Place(None, "<default>"),
    Place(ip="192.0.2.1"),
    Place(ip="<default>"),
]


@pytest.mark.parametrize(
    ("parts", "strict", "wanted"),
    [
        ((), False, PLACES),
        ((), True, []),
        ((PartFilter("user", Match.EXACT, "anna"),), False, [PLACES[0], PLACES[2], PLACES[3]]),
        ((PartFilter("user", Match.EXACT, "anna"),), True, [PLACES[0]]),
        ((PartFilter("user", Match.DEFAULT),), False, [PLACES[1]]),
        ((PartFilter("user", Match.ANY),), False, PLACES[:4]),
        ((PartFilter("user", Match.ANY),), True, PLACES[:2]),
        ((PartFilter("client-id", Match.ANY),), True, PLACES[4:6]),
        ((PartFilter("user", Match.EXACT, "anna"), PartFilter("client-id", Match.DEFAULT)), False, [PLACES[3]]),
        ((PartFilter("user", Match.EXACT, "<default>"),), False, []),
        ((PartFilter("ip", Match.ANY),), True, PLACES[6:]),
        ((PartFilter("ip", Match.EXACT, "192.0.2.1"),), True, [PLACES[6]]),
        ((PartFilter("ip", Match.EXACT, "not an address"),), True, []),
    ],
)
def test_filters_find_what_kafka_finds(parts: tuple[PartFilter, ...], strict: bool, wanted: list[Place]) -> None:
    found = PlaceFilter(parts, strict=strict)
    assert [place for place in PLACES if found.matches(place)] == wanted


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((PartFilter(""),), Reason.INVALID_REQUEST),
        ((PartFilter("topic"),), Reason.UNSUPPORTED_VERSION),
        ((PartFilter("user"), PartFilter("user", Match.DEFAULT)), Reason.INVALID_REQUEST),
        ((PartFilter("user", Match.EXACT),), Reason.INVALID_REQUEST),
        ((PartFilter("user", Match.ANY, "anna"),), Reason.INVALID_REQUEST),
        ((PartFilter("ip"), PartFilter("user")), Reason.INVALID_REQUEST),
    ],
)
def test_filters_that_make_no_sense_are_refused(parts: tuple[PartFilter, ...], reason: Reason) -> None:
    with pytest.raises(PenstockError) as refusal:
        PlaceFilter(parts, strict=False)
    assert refusal.value.reason is reason
