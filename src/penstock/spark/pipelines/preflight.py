"""Before Spark starts, which takes seconds: the broker answers, the topics to read are there, those to write are made."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from penstock.spark.pipelines.errors import PipelineNotFoundError, PipelineUsageError
from penstock.spark.pipelines.model import OnBad, Pipeline, SinkKind, topics_of
from penstock.spark.pipelines.typed import bad_topic

if TYPE_CHECKING:
    from penstock.spark.lake.store import Store


def prepare_topics(pipeline: Pipeline, bootstrap: str, *, reachable: bool = True) -> Iterator[str]:
    """Check and make topics; a sentence for each that was made. ``reachable`` False: the driver is elsewhere, and so may the broker be."""
    if reachable:
        yield from make_topics(bootstrap, topics_read(pipeline), topics_written(pipeline))


def make_topics(bootstrap: str, read: set[str], written: set[str]) -> Iterator[str]:
    """Refuse topics to read that are not there, with what was probably meant; make those to write."""
    if not read | written:
        return
    from penstock.client import Admin, Cluster
    from penstock.client.errors import TOPIC_ALREADY_EXISTS, BrokerRefused

    with Cluster(bootstrap, client_id="penstock-pipeline") as cluster:
        admin = Admin(cluster)
        there = {topic.name for topic in admin.topics()}
        # A pipeline may write what another of its sources reads.
        for name in sorted(read - there - written):
            close = get_close_matches(name, there, n=1)
            meant = f"did you mean {close[0]}?" if close else f"penstock topic create {name}"
            raise PipelineNotFoundError(f"there is no topic {name} to read; {meant}")
        for name in sorted(written - there):
            try:
                admin.create_topic(name)
            except BrokerRefused as error:
                if error.code != TOPIC_ALREADY_EXISTS:
                    raise
                continue
            yield f"made the topic {name}, with the broker's defaults"


def check_folders(pipeline: Pipeline, checkpoint: str) -> None:
    """Refuse a folder of Parquet that has batches which its query has not begun: Spark would skip them, and their rows be nowhere."""
    from penstock.spark.lake.formats import LakeError
    from penstock.spark.lake.store import Store

    for sink in pipeline.sinks:
        if sink.kind is not SinkKind.PARQUET:
            continue
        try:
            written = _batches(Store(sink.path), "_spark_metadata")
            begun = _batches(Store(f"{checkpoint.rstrip('/')}/{sink.name}"), "offsets")
        except (LakeError, OSError):
            # Spark knows more file systems than Arrow does.
            continue
        if written > begun:
            raise PipelineUsageError(
                f"sink {sink.name}: {sink.path} has batches up to {written} of another checkpoint than {checkpoint}, and Spark would leave out "
                "as many of this one. Give the sink another path, or the checkpoint that wrote there"
            )


def _batches(store: Store, folder: str) -> int:
    """The last batch in a log of Spark's; -1 when there is none."""
    names = (path.rpartition("/")[2].removesuffix(".compact") for path, _, _ in store.files(folder))
    return max((int(name) for name in names if name.isdigit()), default=-1)


def topics_read(pipeline: Pipeline) -> set[str]:
    """The topics that sources name."""
    named = (source for source in pipeline.sources.values() if source.table is None)
    return {topic for source in named for topic in topics_of(source)}


def topics_written(pipeline: Pipeline) -> set[str]:
    """The topics of sinks, and those of values that do not fit."""
    bad = {bad_topic(source) for source in pipeline.sources.values() if source.on_bad is OnBad.DEAD_LETTER}
    return {sink.topic for sink in pipeline.sinks if sink.topic} | bad
