"""Access as a test wants it: a guard that a function tells what to refuse, and rules without a store."""

from collections.abc import Callable

from penstock.core.security.access import Access, Caller, Decision
from penstock.core.security.rules import AccessRules
from penstock.operations.access import CLUSTER_NAME, Cause
from penstock.operations.operation import Action, Resource
from tests.support.kafka_node import KafkaNode

Asked = tuple[Action, str]
"""An action, and what it is done to: ``topic t``, ``group g``, ``cluster``, ``any topic``."""
CLUSTER = "cluster"


class Guard(Access):
    """Refuses what it was told to, and remembers what it was asked."""

    def __init__(self, refuses: Callable[[Action, str], bool] = lambda _action, _what: True) -> None:
        super().__init__(is_on=True)
        self._refuses = refuses
        self.asked: list[Asked] = []
        self.callers: set[Caller] = set()

    def decide(self, caller: Caller, action: Action, resource: Resource, name: str = CLUSTER_NAME) -> Decision:
        kind = resource.value.replace("_", " ")
        return self._answer(caller, action, CLUSTER if resource is Resource.CLUSTER else f"{kind} {name}")

    def decide_any(self, caller: Caller, action: Action, resource: Resource) -> Decision:
        return self._answer(caller, action, f"any {resource.value}")

    def _answer(self, caller: Caller, action: Action, what: str) -> Decision:
        self.callers.add(caller)
        self.asked.append((action, what))
        return Decision(not self._refuses(action, what), Cause.NO_RULE)


def only(*allowed: Asked) -> Guard:
    """Allows nothing but this."""
    return Guard(lambda action, what: (action, what) not in allowed)


def all_but(*refused: Asked) -> Guard:
    """Allows everything but this."""
    return Guard(lambda action, what: (action, what) in refused)


async def use_rules(node: KafkaNode, *super_users: str) -> AccessRules:
    """Decide by rules that are stored, whatever the settings: callers need not authenticate."""
    broker = node.broker
    access = broker.access = Access(is_on=True, super_users=frozenset(super_users))
    rules = broker.access_rules = AccessRules(node.store, access.use, broker.report)  # type: ignore[misc]  # only in tests
    await rules.load()
    return rules
