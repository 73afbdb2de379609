"""The rights of callers. The door checks them for every operation, before anything is done.

At present every caller may do everything. A gateway makes a :class:`Caller` for each connection or request and passes it
to the door, so access control needs only a change of :class:`Access`.
"""

from typing import Final, NamedTuple, NewType

from penstock.operations.operation import Action
from penstock.types import Gateway

Principal = NewType("Principal", str)

ANONYMOUS: Final = Principal("User:ANONYMOUS")


class Caller(NamedTuple):
    """The principal of a request, its gateway, and the address of the client (for logs)."""

    principal: Principal
    gateway: Gateway
    client: str = ""


INTERNAL: Final = Caller(Principal("penstock"), Gateway.INTERNAL)
"""The broker itself."""


class Access:
    """Allows everything. A refusal is a PenstockError with the reason for this kind of resource."""

    allows_all: bool = True
    """Saves hot paths a call."""

    def require_topic(self, caller: Caller, action: Action, topic: str) -> None:
        """``TOPIC_AUTHORIZATION_FAILED`` unless the caller may do this to the topic."""

    def require_group(self, caller: Caller, action: Action, group: str) -> None:
        """``GROUP_AUTHORIZATION_FAILED`` unless the caller may do this to the group."""

    def require_cluster(self, caller: Caller, action: Action) -> None:
        """``CLUSTER_AUTHORIZATION_FAILED`` unless the caller may do this to the node or the cluster."""
