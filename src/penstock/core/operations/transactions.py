"""Transactions and share groups, which are not supported."""

from typing import TYPE_CHECKING

from penstock.core.operations.handling import answers
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.operations import transactions

if TYPE_CHECKING:
    from penstock.core.broker import Broker


@answers(transactions.FindTransactionCoordinator)
def find_transaction_coordinator(_: "Broker", __: transactions.FindTransactionCoordinator, ___: Caller) -> int:
    """There is none."""
    raise PenstockError(
        Reason.TRANSACTIONS_NOT_SUPPORTED,
        "This broker does not support transactions. Produce without transactional.id; idempotence works without it.",
    )


@answers(transactions.WriteInTransactions)
def write_in_transactions(_: "Broker", __: transactions.WriteInTransactions, ___: Caller) -> None:
    """Nothing is written."""
    raise PenstockError(
        Reason.TRANSACTIONS_NOT_SUPPORTED, "Transactions are not supported. Produce without transactional.id"
    )


@answers(transactions.FindShareCoordinator)
def find_share_coordinator(_: "Broker", __: transactions.FindShareCoordinator, ___: Caller) -> int:
    """There is none."""
    raise PenstockError(Reason.INVALID_REQUEST, "This broker has no coordinators of type 2; use type 0 (group).")
