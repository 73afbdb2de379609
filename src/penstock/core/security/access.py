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
    """Who sends a request, and how: the principal, the gateway, and the address of the client.

    It travels with the operation to other nodes, so it has everything that a decision needs. Roles are not part of it: every node
    knows the members of all roles.
    """

    principal: Principal
    gateway: Gateway
    client: str = ""
    groups: tuple[str, ...] = ()
    """The names of groups that the caller's token claims, without ``Group:``."""
    listener: str = ""
    """The name of the listener."""
    method: str = ""
    """How the caller authenticated, in the words of the audit log; empty if it did not."""
    client_id: str = ""
    """What the client calls itself, which nothing proves: for quotas and the audit log."""


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
