"""What transactions and share groups would need. They are not supported: refused, after the rights are checked."""

from penstock.operations.operation import (
    ANY_NODE,
    Action,
    Operation,
    Repeat,
    on_cluster,
    on_transactional_id,
)


class FindTransactionCoordinator(Operation[int], frozen=True):
    """The node that would coordinate the transactions of an id."""

    transactional_id: str

    rights = (on_transactional_id(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class WriteInTransactions(Operation[None], frozen=True):
    """Produce in transactions of an id."""

    transactional_id: str

    rights = (on_transactional_id(Action.WRITE),)
    belongs_to = ANY_NODE


class FindShareCoordinator(Operation[int], frozen=True):
    """The node that would coordinate the state of a share group."""

    key: str

    is_change = False
    rights = (on_cluster(Action.CLUSTER_ACTION),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS
