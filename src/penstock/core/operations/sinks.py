"""Exactly-once sinks."""

from typing import TYPE_CHECKING

from penstock.core.operations.handling import Cancel, Done, answers, begins
from penstock.core.operations.rights import may
from penstock.core.security.access import Caller
from penstock.operations import sinks
from penstock.operations.operation import Action, Resource

if TYPE_CHECKING:
    from penstock.core.broker import Broker


@begins(sinks.OpenSink)
def open_sink(broker: "Broker", asked: sinks.OpenSink, _: Caller, done: Done[sinks.OpenedSink]) -> Cancel | None:
    """Created if it does not exist."""
    broker.sinks.open(asked.sink, done, remember_ms=asked.remember_ms)
    return None


@begins(sinks.CommitSink)
def commit(
    broker: "Broker", asked: sinks.CommitSink, caller: Caller, done: Done[sinks.CommittedBatch]
) -> Cancel | None:
    """The commit continues even if no caller waits for it."""
    broker.sinks.commit(caller, asked, done)
    return None


@begins(sinks.AbortSink)
def abort(broker: "Broker", asked: sinks.AbortSink, _: Caller, done: Done[sinks.AbortedBatch]) -> Cancel | None:
    """Unless the batch is committed or about to be."""
    broker.sinks.abort(asked.sink, asked.batch_id, done)
    return None


@begins(sinks.DeleteSink)
def delete(broker: "Broker", asked: sinks.DeleteSink, _: Caller, done: Done[None]) -> Cancel | None:
    """With all staged batches."""
    broker.sinks.delete(asked.sink, done)
    return None


@answers(sinks.ListSinks)
def list_sinks(broker: "Broker", _: sinks.ListSinks, caller: Caller) -> tuple[sinks.SinkStatus, ...]:
    """By name."""
    return tuple(
        broker.sinks.status(name)
        for name in broker.sinks.names()
        if may(broker, caller, Action.DESCRIBE, Resource.SINK, name)
    )


@answers(sinks.DescribeSink)
def describe_sink(broker: "Broker", asked: sinks.DescribeSink, _: Caller) -> sinks.SinkStatus:
    """One sink."""
    return broker.sinks.status(asked.sink)
