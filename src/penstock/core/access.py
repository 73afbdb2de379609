"""Who may do what: the one place that is asked, by every gateway, before anything is done.

For now everybody may do everything. What is here already is the way of the question: a gateway makes a :class:`Caller` for
each connection or request, and whoever serves it hands that on, so access control is a change of :class:`Access` alone.
"""

from typing import Final, NamedTuple, NewType

from penstock.operations.operation import Action
from penstock.types import Gateway

Principal = NewType("Principal", str)

ANONYMOUS: Final = Principal("User:ANONYMOUS")


class Caller(NamedTuple):
    """Who asks, through which gateway, and from where (for logs)."""

    principal: Principal
    gateway: Gateway
    client: str = ""


INTERNAL: Final = Caller(Principal("penstock"), Gateway.INTERNAL)
"""The broker itself."""


class Access:
    """Allows everything. A refusal is a PenstockError with the reason that fits the resource, and nothing has been done."""

    allows_all: bool = True
    """Lets hot paths pass without a call."""

    def require_topic(self, caller: Caller, action: Action, topic: str) -> None:
        """``TOPIC_AUTHORIZATION_FAILED`` unless the caller may do this to the topic."""

    def require_group(self, caller: Caller, action: Action, group: str) -> None:
        """``GROUP_AUTHORIZATION_FAILED`` unless the caller may do this to the group."""

    def require_cluster(self, caller: Caller, action: Action) -> None:
        """``CLUSTER_AUTHORIZATION_FAILED`` unless the caller may do this to the node or the cluster."""
