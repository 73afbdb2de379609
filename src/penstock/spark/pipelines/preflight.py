"""Before Spark starts, which takes seconds: the broker answers, the topics to read are there, those to write are made."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from penstock.spark.pipelines.errors import PipelineNotFoundError
from penstock.spark.pipelines.model import OnBad, Pipeline, topics_of
from penstock.spark.pipelines.typed import bad_topic


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


def topics_read(pipeline: Pipeline) -> set[str]:
    """The topics that sources name."""
    named = (source for source in pipeline.sources.values() if source.table is None)
    return {topic for source in named for topic in topics_of(source)}


def topics_written(pipeline: Pipeline) -> set[str]:
    """The topics of sinks, and those of values that do not fit."""
    bad = {bad_topic(source) for source in pipeline.sources.values() if source.on_bad is OnBad.DEAD_LETTER}
    return {sink.topic for sink in pipeline.sinks if sink.topic} | bad
