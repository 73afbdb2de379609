"""What the door says no with: each text says what to do next."""

from penstock.core.sinks.sink import Sink
from penstock.core.topic_names import check_topic_name
from penstock.errors import PenstockError, Reason
from penstock.limits import SINK_NAME_CHARS_MAX, SINKS_MAX
from penstock.settings import SinkSettings


def check_sink_name(name: str) -> None:
    """INVALID_REQUEST unless a sink may have the name."""
    if len(name) > SINK_NAME_CHARS_MAX:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"the name of the sink has {len(name)} characters, and {SINK_NAME_CHARS_MAX} is the most; choose a shorter one",
        )
    try:
        check_topic_name(name)
    except PenstockError as error:
        raise PenstockError(
            Reason.INVALID_REQUEST, f"a sink is named as a topic is: {error.text.replace('topic name', 'name')}"
        ) from None


def unknown(name: str) -> PenstockError:
    """Nobody opened it."""
    shown = ascii(name if len(name) <= 64 else f"{name[:61]}...")
    return PenstockError(Reason.UNKNOWN_SINK, f"there is no sink {shown}; open it first")


def too_many(count: int, settings: SinkSettings) -> PenstockError:
    """One more cannot be remembered."""
    or_raise = ", or raise sinks.sinks_max" if settings.sinks_max < SINKS_MAX else ""
    return PenstockError(
        Reason.POLICY_VIOLATION,
        f"there are {count} sinks, which is the most: forget those that are not used any more (penstock sink ls, then penstock sink "
        f"delete NAME; or DELETE /v1/sinks/NAME){or_raise}. Each goes by itself when nobody used it for its remember_ms",
    )


def just_removed(name: str) -> PenstockError:
    """A moment later there is room for a new one."""
    return PenstockError(
        Reason.REQUEST_TIMED_OUT, f"the old staging topic of sink {name} is just being removed; open it again"
    )


def busy(sink: Sink) -> PenstockError:
    """What would disturb a commit."""
    intent = sink.stored.intent
    what = "another call" if intent is None else f"batch {intent.batch_id}"
    return PenstockError(
        Reason.SINK_BUSY, f"sink {sink.name} is busy with {what}; wait for it, and look at its status before you go on"
    )
