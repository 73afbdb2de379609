"""What holds for every operation: it declares its rights, its owner and its handler, and it survives the way to another node."""

from pathlib import Path
from typing import Any, get_origin

import msgspec
import pytest

from penstock.core.operations import door
from penstock.core.operations.handling import HANDLERS, MERGES, HandlerKind
from penstock.errors import Reason
from penstock.operations import catalogue
from penstock.operations.catalogue import CATALOGUE, operation_decoder, result_decoder
from penstock.operations.operation import Action, AnyOperation, OwnerKind, Resource, Stream, result_type
from tests.support.operations import every_operation, sample

KINDS = list(CATALOGUE.values())


def fields_of(kind: type[AnyOperation[Any]]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize("kind", KINDS, ids=list(CATALOGUE))
def test_an_operation_says_which_actions_on_which_resources_it_needs(kind: type[AnyOperation[Any]]) -> None:
    assert kind.rights, f"{kind.__name__} needs no right, so anybody may ask for it"
    for right in kind.rights:
        assert isinstance(right.action, Action)
        assert isinstance(right.resource, Resource)
        # Without a field it is a list, from which the handler leaves out what the caller may not see, or it is about the cluster.
        assert right.field in fields_of(kind) if right.field else isinstance(right.resource, Resource)


@pytest.mark.parametrize("kind", KINDS, ids=list(CATALOGUE))
def test_a_right_on_each_item_is_of_an_operation_with_a_result_for_each_item(kind: type[AnyOperation[Any]]) -> None:
    each = [right for right in kind.rights if right.each]
    assert len(each) <= 1
    for right in each:
        result = result_type(kind)
        assert get_origin(result) is tuple
        refused, others = msgspec.msgpack.Decoder(result).decode(msgspec.msgpack.encode([Reason.REQUEST_TIMED_OUT] * 2))
        assert refused is others is Reason.REQUEST_TIMED_OUT
        items = getattr(sample(kind), right.field)
        assert isinstance(items, tuple)
        assert all(isinstance(item, str) or isinstance(item.topic, str) for item in items)


@pytest.mark.parametrize("kind", KINDS, ids=list(CATALOGUE))
def test_the_owner_of_an_operation_follows_from_its_fields(kind: type[AnyOperation[Any]]) -> None:
    assert set(kind.belongs_to.fields) <= fields_of(kind)


@pytest.mark.parametrize("kind", KINDS, ids=list(CATALOGUE))
def test_an_operation_has_a_handler_of_its_kind(kind: type[AnyOperation[Any]]) -> None:
    assert (HANDLERS[kind].kind is HandlerKind.STREAMS) == issubclass(kind, Stream)
    assert (kind in MERGES) == (kind.belongs_to.kind is OwnerKind.EVERY)


def test_the_modules_of_all_nouns_are_known() -> None:
    nouns = {path.stem for path in Path(catalogue.__file__).parent.glob("*.py")} - {
        "__init__",
        "operation",
        "catalogue",
    }
    assert {module.__name__.rpartition(".")[2] for module in catalogue._MODULES} == nouns
    handled = {path.stem for path in Path(door.__file__).parent.glob("*.py")}
    assert nouns <= handled
    assert all(hasattr(door, noun) for noun in nouns), "door.py imports the handlers of each noun"


def test_there_is_no_handler_for_anything_else() -> None:
    assert set(HANDLERS) == set(KINDS)
    assert set(MERGES) <= set(KINDS)


@pytest.mark.parametrize("asked", every_operation(), ids=list(CATALOGUE))
def test_an_operation_is_the_same_after_the_way_to_another_node(asked: AnyOperation[Any]) -> None:
    decoder = operation_decoder(type(asked).__name__)
    assert decoder is not None
    assert decoder.decode(msgspec.msgpack.encode(asked)) == asked


@pytest.mark.parametrize("kind", KINDS, ids=list(CATALOGUE))
def test_a_result_is_read_as_what_it_was(kind: type[AnyOperation[Any]]) -> None:
    decoder = result_decoder(kind)
    assert decoder is result_decoder(kind)
    if result_type(kind) is None:
        assert decoder.decode(msgspec.msgpack.encode(None)) is None


def test_a_name_that_no_operation_has_is_not_read() -> None:
    assert operation_decoder("Nonsense") is None


def test_the_samples_are_full() -> None:
    assert sample(list[tuple[int, str]]) == [(1, "x")]
