"""Quotas: describe and change them."""

from typing import TYPE_CHECKING

from penstock.core.operations.handling import answers, works
from penstock.core.quotas.names import PlaceFilter, entity_of, place_of
from penstock.core.security.access import Caller
from penstock.operations import quotas

if TYPE_CHECKING:
    from penstock.core.broker import Broker


@answers(quotas.DescribeQuotas)
def describe_quotas(broker: "Broker", asked: quotas.DescribeQuotas, _: Caller) -> tuple[quotas.EntityQuotas, ...]:
    """From the metadata that every node has."""
    wanted = PlaceFilter(asked.parts, strict=asked.strict)
    return tuple(
        quotas.EntityQuotas(entity_of(place), dict(found))
        for place, found in broker.quotas.store
        if wanted.matches(place)
    )


@works(quotas.AlterQuotas)
async def alter_quotas(broker: "Broker", asked: quotas.AlterQuotas, _: Caller) -> None:
    """Returns when the change is stored."""
    place = place_of(asked.entity)
    await broker.quotas.store.alter(place, asked.changes, validate_only=asked.validate_only)
