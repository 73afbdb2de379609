"""Checks before Spark starts, which takes seconds: the broker answers, topics to read exist, topics to write can be created.

Topics are created after Spark has analyzed the pipeline, so a wrong pipeline leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from penstock.spark.connections import new_cluster
from penstock.spark.pipelines.errors import PipelineNotFoundError, PipelineUsageError
from penstock.spark.pipelines.model import OnBad, Pipeline, SinkKind, topics_of
from penstock.spark.pipelines.typed import bad_topic

if TYPE_CHECKING:
    from penstock.client import Admin
    from penstock.spark.lake.store import Store

CLIENT_ID: Final = "penstock-pipeline"


def check_broker(brokers: Mapping[str, str]) -> None:
    """Raise the client's error if no broker answers."""
    with new_cluster(brokers, CLIENT_ID) as cluster:
        cluster.describe()


def check_topics(brokers: Mapping[str, str], read: set[str], written: set[str]) -> None:
    """Refuse topics to read that do not exist, with a suggestion, and topics to write that cannot be created."""
    if not read | written:
        return
    from penstock.client import Admin

    with new_cluster(brokers, CLIENT_ID) as cluster:
        admin = Admin(cluster)
        there = {topic.name for topic in admin.topics()}
        # A pipeline may write what another of its sources reads.
        for name in sorted(read - there - written):
            close = get_close_matches(name, there, n=1)
            meant = f"did you mean {close[0]}?" if close else f"to create it, run penstock topic create {name}"
            raise PipelineNotFoundError(f"Topic {name} does not exist; {meant}")
        for name in sorted(written - there):
            _create(admin, name, validate_only=True)


def make_topics(brokers: Mapping[str, str], written: set[str]) -> Iterator[str]:
    """Create those that do not exist, with a sentence for each."""
    if not written:
        return
    from penstock.client import Admin

    with new_cluster(brokers, CLIENT_ID) as cluster:
        admin = Admin(cluster)
        there = {topic.name for topic in admin.topics()}
        for name in sorted(written - there):
            if _create(admin, name):
                yield f"created topic {name} with the broker's defaults"


def _create(admin: Admin, name: str, *, validate_only: bool = False) -> bool:
    """False if it was created in the meantime."""
    from penstock.client.errors import TOPIC_ALREADY_EXISTS, BrokerRefused

    try:
        admin.create_topic(name, validate_only=validate_only)
    except BrokerRefused as error:
        if error.code != TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def check_folders(pipeline: Pipeline, checkpoint: str) -> None:
    """Refuse a Parquet folder with batches that its query has not started: Spark would skip these, and their rows would be lost."""
    from penstock.spark.lake.formats import LakeError
    from penstock.spark.lake.store import Store

    for sink in pipeline.sinks:
        if sink.kind is not SinkKind.PARQUET:
            continue
        try:
            written = _batches(Store(sink.path), "_spark_metadata")
            begun = _batches(Store(f"{checkpoint.rstrip('/')}/{sink.name}"), "offsets")
        except (LakeError, OSError):
            # Spark supports more file systems than Arrow.
            continue
        if written > begun:
            raise PipelineUsageError(
                f"Sink {sink.name}: {sink.path} has batches up to {written} from a checkpoint other than {checkpoint}, and Spark would skip "
                "as many batches of this one. Set another path for the sink, or use the checkpoint that wrote to this path"
            )


def _batches(store: Store, folder: str) -> int:
    """The last batch in a log of Spark; -1 if there is none."""
    names = (path.rpartition("/")[2].removesuffix(".compact") for path, _, _ in store.files(folder))
    return max((int(name) for name in names if name.isdigit()), default=-1)


def topics_read(pipeline: Pipeline) -> set[str]:
    """The topics of sources."""
    named = (source for source in pipeline.sources.values() if source.table is None)
    return {topic for source in named for topic in topics_of(source)}


def topics_written(pipeline: Pipeline) -> set[str]:
    """The topics of sinks, and those for values that do not match."""
    bad = {bad_topic(source) for source in pipeline.sources.values() if source.on_bad is OnBad.DEAD_LETTER}
    return {sink.topic for sink in pipeline.sinks if sink.topic} | bad
