"""Administration of quotas."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client.cluster import Cluster
from penstock.client.errors import check

CHANGE_MS_MAX: Final = 10_000
"""How long a change is retried. It is short, so that an outage of the metadata store is reported soon."""

Entity = Mapping[str, str | None]
"""By type (``user``, ``client-id`` or ``ip``) the name; None for all that have no quota of their own."""


@dataclass(frozen=True, slots=True)
class QuotasOf:
    """An entity and its quotas by name."""

    entity: Entity
    quotas: Mapping[str, float]


class QuotaAdmin:
    """Lists and changes quotas."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def quotas(self) -> list[QuotasOf]:
        """All of them."""
        from penstock.wire.kafka import describe_client_quotas_generated as wire

        request = wire.DescribeClientQuotasRequest()
        answer = self._cluster.retry(
            lambda: self._cluster.any_connection().call(request, wire.DescribeClientQuotasResponse)
        )
        check(answer.error_code, "quotas", answer.error_message)
        return [
            QuotasOf(
                {part.entity_type: part.entity_name for part in entry.entity},
                {value.key: value.value for value in entry.values},
            )
            for entry in answer.entries or []
        ]

    def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of an entity; None removes one. Other quotas do not change."""
        from penstock.wire.kafka import alter_client_quotas_generated as wire

        entry = wire.AlterClientQuotasRequestEntry(
            [wire.AlterClientQuotasRequestEntity(kind, name) for kind, name in entity.items()],
            [wire.AlterClientQuotasRequestOp(key, value or 0.0, value is None) for key, value in changes.items()],
        )
        request = wire.AlterClientQuotasRequest([entry])

        def attempt() -> None:
            for result in self._cluster.controller().call(request, wire.AlterClientQuotasResponse).entries:
                check(result.error_code, "quota", result.error_message)

        self._cluster.retry(attempt, timeout_ms=min(self._cluster.timeout_ms, CHANGE_MS_MAX))

    def remove(self, entity: Entity, keys: Sequence[str]) -> None:
        """Remove quotas of an entity."""
        self.alter(entity, dict.fromkeys(keys))
