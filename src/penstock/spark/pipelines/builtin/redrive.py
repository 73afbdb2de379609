"""``penstock pipeline redrive``: shows a plan for the dead letters that SQL selects, and lets the broker redrive them.

Spark only selects. The positions of the dead letters are sent to the broker in bounded pieces. The broker moves each one atomically: it is
appended to its topic and finished as a dead letter. One that is no longer open is skipped. So after a crash, the same command continues with
the rest, and nothing is redriven twice.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, Final

from penstock.spark.connections import new_cluster
from penstock.spark.options import SparkOptions
from penstock.spark.pipelines.builtin import Arguments, Builtin, WrongArgument, option
from penstock.spark.pipelines.builtin.dead_letters import letters, moment
from penstock.spark.pipelines.errors import PipelineError, PipelineUsageError
from penstock.spark.pipelines.preflight import CLIENT_ID
from penstock.spark.security import security_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from penstock.client import QueueAdmin
    from penstock.client.queue_admin import Chosen
    from penstock.spark.pipelines.run import Execution, RunProgress

CHUNK: Final = 10_000
"""Dead letters in one request: the maximum of the broker."""
REASONS_MAX: Final = 1_000
_REASONS_SHOWN: Final = 20
_TABLE: Final = ("topic", "planned", "redriven", "skipped", "failed")
_NOT_FOUND: Final = 404

Place = tuple[str, int, int]
"""The dead-letter topic, partition and offset of a dead letter."""


class RedriveArguments(Arguments, frozen=True, kw_only=True):
    """The arguments of ``redrive``."""

    topic: Annotated[
        tuple[str, ...],
        option("The topic whose dead letters are sent back; can be repeated.", metavar="TOPIC", short="-t"),
    ]
    where: Annotated[
        str,
        option("An SQL condition on the columns of the table dead_letters.", metavar="SQL", short="-w"),
    ] = ""
    dry_run: Annotated[bool, option("Only show the plan.")] = False
    rate: Annotated[float, option("Dead letters per second; 0 is unlimited.", metavar="N")] = 0.0
    max: Annotated[int | None, option("Maximum number of dead letters, oldest first.", metavar="N", short="-n")] = None
    http: Annotated[
        str,
        option("The address of the broker's HTTP API; discovered through the broker by default.", metavar="HOST:PORT"),
    ] = ""


@dataclass(slots=True)
class RedriveOutcome:
    """The plan and the result for the dead letters of one topic."""

    topic: str
    dead_letter_topic: str
    reasons: list[dict[str, object]] = field(default_factory=list)
    planned: int = 0
    redriven: int = 0
    skipped: int = 0
    failed: int = 0
    last_failure: str | None = None

    def row(self) -> dict[str, object]:
        """The row of the result."""
        return {
            "topic": self.topic,
            "dead_letter_topic": self.dead_letter_topic,
            "planned": self.planned,
            "reasons": self.reasons,
            "redriven": self.redriven,
            "skipped": self.skipped,
            "failed": self.failed,
        }


def run(arguments: RedriveArguments, context: Execution) -> None:
    """Redrive the dead letters that SQL selects to their original topic.

    Shows the plan by reason, and asks. Their attempts start from zero. If it is interrupted, run it again: it continues with the rest, and
    none is redriven twice. For example: --topic orders --where "reason LIKE '%timeout%' AND died_at > now() - interval 1 day".
    """
    check(arguments)
    from penstock.client import QueueAdmin

    with QueueAdmin(_http(arguments, context), security=security_of(SparkOptions(context.brokers))) as admin:
        outcomes = _with_dead_letters(admin, arguments.topic, context)
        if not outcomes:
            context.emit([], _TABLE, nothing="nothing was redriven")
            return
        if not arguments.dry_run:
            # Before Spark selects them, which takes long.
            context.need_answer()
        chosen = _chosen(arguments, context, [outcome.topic for outcome in outcomes.values()]).persist()
        try:
            planned = _plan(chosen, outcomes, context)
            if planned and not arguments.dry_run and context.confirm(_question(outcomes)):
                _carry_out(admin, chosen, outcomes, context, arguments.rate)
        finally:
            chosen.unpersist()
    context.emit([outcome.row() for outcome in outcomes.values()], _TABLE)
    failed = sum(outcome.failed for outcome in outcomes.values())
    if failed:
        last = next(outcome.last_failure for outcome in outcomes.values() if outcome.failed)
        raise PipelineError(f"{failed} dead letters could not be redriven and are still open: {last}")


def check(arguments: RedriveArguments) -> None:
    """Check the arguments. Only Spark can check the condition."""
    if not 0 <= arguments.rate < float("inf"):
        raise WrongArgument("rate", f"{arguments.rate} is not a number per second, or 0 for no limit")
    if arguments.max is not None and arguments.max < 1:
        raise WrongArgument("max", f"{arguments.max} is too small; specify 1 or more")
    if not arguments.topic:
        raise WrongArgument("topic", "Specify the topic whose dead letters to send back")


def _http(arguments: RedriveArguments, context: Execution) -> str:
    if arguments.http:
        return arguments.http
    from penstock.client.discovery import NoHttpListener, http_addresses

    with new_cluster(context.brokers, CLIENT_ID) as cluster:
        try:
            return http_addresses(cluster)
        except NoHttpListener as error:
            raise PipelineUsageError(
                f"{context.bootstrap} has no HTTP API, which redrives need: start the broker with --http HOST:PORT"
            ) from error


def _with_dead_letters(admin: QueueAdmin, topics: Iterable[str], context: Execution) -> dict[str, RedriveOutcome]:
    """The topics with dead letters, by dead-letter topic, determined before Spark starts."""
    from penstock.client import RequestRefused
    from penstock.client.queue_admin import Wanted

    found: dict[str, RedriveOutcome] = {}
    for topic in dict.fromkeys(topics):
        try:
            plan = admin.plan(topic, Wanted(max_records=1))
        except RequestRefused as refused:
            if refused.status != _NOT_FOUND:
                raise
            context.note(refused.sentence)
            continue
        if plan.count:
            found.setdefault(plan.dead_letter_topic, RedriveOutcome(topic, plan.dead_letter_topic))
        else:
            context.note(f"topic {topic} has no open dead letters")
    return found


def _chosen(arguments: RedriveArguments, context: Execution, topics: list[str]) -> DataFrame:
    places = ("dlq_topic", "dlq_partition", "dlq_offset")
    found = letters(
        context,
        topics=topics,
        where=arguments.where,
        columns=(*places, "reason", "died_at"),
        state="open",
        http=arguments.http,
    ).select(*places, "reason", "died_at")
    return found if arguments.max is None else found.orderBy("died_at", *places).limit(arguments.max)


def _plan(chosen: DataFrame, outcomes: dict[str, RedriveOutcome], context: Execution) -> int:
    """Count the selected ones by topic and reason, and show the plan."""
    from pyspark.sql import functions as f

    for row in chosen.groupBy("dlq_topic").count().collect():
        outcomes[row["dlq_topic"]].planned = row["count"]
    by_reason = (
        chosen.groupBy("dlq_topic", "reason")
        .agg(
            f.count("*").alias("count"),
            f.unix_millis(f.min("died_at")).alias("oldest"),
            f.unix_millis(f.max("died_at")).alias("newest"),
        )
        .orderBy(f.desc("count"), "dlq_topic", "reason")
        .limit(REASONS_MAX)
    )
    for row in by_reason.collect():
        counted = {"reason": row["reason"], "count": row["count"]}
        moments = {"oldest": moment(row["oldest"]), "newest": moment(row["newest"])}
        outcomes[row["dlq_topic"]].reasons.append({**counted, **moments})
    for outcome in outcomes.values():
        if not outcome.planned:
            context.note(f"no open dead letters of {outcome.topic} match")
            continue
        context.note(f"{outcome.planned} dead letters of {outcome.topic}:")
        for reason in outcome.reasons[:_REASONS_SHOWN]:
            context.note(f"  {reason['count']:>8}  {reason['reason']}  ({reason['oldest']} to {reason['newest']})")
        if len(outcome.reasons) > _REASONS_SHOWN:
            context.note(f"  and {len(outcome.reasons) - _REASONS_SHOWN} more reasons")
    return sum(outcome.planned for outcome in outcomes.values())


def _question(outcomes: dict[str, RedriveOutcome]) -> str:
    planned = [outcome for outcome in outcomes.values() if outcome.planned]
    topics = ", ".join(outcome.topic for outcome in planned)
    return f"Send {sum(outcome.planned for outcome in planned)} dead letters of {topics} back?"


def _carry_out(
    admin: QueueAdmin,
    chosen: DataFrame,
    outcomes: dict[str, RedriveOutcome],
    context: Execution,
    rate_per_second: float,
) -> None:
    """Redrive them in bounded pieces, in the order of their positions."""
    progress = context.progress("redriven", sum(outcome.planned for outcome in outcomes.values()))
    places = chosen.select("dlq_topic", "dlq_partition", "dlq_offset").orderBy(
        "dlq_topic", "dlq_partition", "dlq_offset"
    )
    found: Iterator[Place] = ((row[0], row[1], row[2]) for row in places.toLocalIterator(prefetchPartitions=True))
    for dead_letter_topic, of_topic in groupby(found, key=lambda place: place[0]):
        while chunk := tuple(islice(of_topic, CHUNK)):
            _send_back(admin, outcomes[dead_letter_topic], chunk, progress, rate_per_second)


def _send_back(
    admin: QueueAdmin, outcome: RedriveOutcome, chunk: tuple[Place, ...], progress: RunProgress, rate_per_second: float
) -> None:
    from penstock.client.queue_admin import Wanted

    done = 0
    last = None
    with closing(
        admin.redrive(outcome.topic, Wanted(chosen=by_partition(chunk)), rate_per_second=rate_per_second)
    ) as lines:
        for last in lines:
            now = last.finished + last.skipped + last.failed
            progress.advance(now - done, f"of {outcome.topic}")
            done = now
    assert last is not None, "a job that ends without a line is a lost connection"
    outcome.redriven += last.finished
    outcome.failed += last.failed
    outcome.last_failure = last.last_failure or outcome.last_failure
    # Those that the broker does not count were finished by others since they were selected.
    outcome.skipped += len(chunk) - last.finished - last.failed


def by_partition(chunk: Iterable[Place]) -> list[Chosen]:
    """Positions in one dead-letter topic, for a request."""
    from penstock.client.queue_admin import Chosen

    offsets: dict[int, list[int]] = {}
    for _, partition, offset in chunk:
        offsets.setdefault(partition, []).append(offset)
    return [Chosen(partition, found) for partition, found in offsets.items()]


BUILTIN: Final = Builtin("redrive", RedriveArguments, run, streams=False, check=check)
