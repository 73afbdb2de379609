"""The refusals of the operations on sinks, and the check of a name."""

from penstock.core.sinks.sink import Sink
from penstock.core.topics.names import check_topic_name
from penstock.errors import PenstockError, Reason
from penstock.limits import SINK_NAME_CHARS_MAX, SINKS_MAX
from penstock.settings import SinkSettings


def check_sink_name(name: str) -> None:
    """INVALID_REQUEST if the name is not allowed."""
    if len(name) > SINK_NAME_CHARS_MAX:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"The name of the sink has {len(name)} characters, but the limit is {SINK_NAME_CHARS_MAX}; choose a shorter name",
        )
    try:
        check_topic_name(name)
    except PenstockError as error:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"The name of a sink follows the rules for topics: {error.text.replace('topic name', 'name')}",
        ) from None


def unknown(name: str) -> PenstockError:
    """The sink does not exist."""
    shown = ascii(name if len(name) <= 64 else f"{name[:61]}...")
    return PenstockError(Reason.UNKNOWN_SINK, f"There is no sink {shown}; open it first")


def too_many(count: int, settings: SinkSettings) -> PenstockError:
    """The limit on sinks is reached."""
    or_raise = ", or raise sinks.sinks_max" if settings.sinks_max < SINKS_MAX else ""
    return PenstockError(
        Reason.POLICY_VIOLATION,
        f"There are {count} sinks, which is the limit: delete those that are no longer used (penstock sink ls, then penstock sink "
        f"delete NAME; or DELETE /v1/sinks/NAME){or_raise}. Sinks that are not used for their remember_ms are deleted automatically",
    )


def just_removed(name: str) -> PenstockError:
    """The sink was just deleted, and can be opened again in a moment."""
    return PenstockError(
        Reason.REQUEST_TIMED_OUT, f"The old staging topic of sink {name} is being deleted; open the sink again"
    )


def busy(sink: Sink) -> PenstockError:
    """The sink is being changed by another call."""
    intent = sink.stored.intent
    what = "another call" if intent is None else f"batch {intent.batch_id}"
    return PenstockError(
        Reason.SINK_BUSY,
        f"Sink {sink.name} is busy with {what}; wait until it is done, and check the status of the sink",
    )
