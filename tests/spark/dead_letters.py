"""Dead letters for tests: made by a worker that gives up."""

from penstock.client import QueueAdmin, QueueClient
from tests.support.waiting import eventually

GROUP = "shipping"


class Mortuary:
    """One topic's queue, and how its records die."""

    def __init__(self, http: str, topic: str, group: str = GROUP) -> None:
        self.http = http
        self.topic = topic
        self.group = group

    def die(self, *records: tuple[bytes, str]) -> None:
        """Each record, with what it died of; all are dead letters when this returns."""
        reasons = dict(records)
        with QueueClient(self.http, owner="undertaker") as client, QueueAdmin(self.http) as admin:
            before = self.open_count(admin)
            for value, _ in records:
                client.produce(self.topic, value, key=b"k-" + value, max_attempts=1)
            done = 0
            while done < len(records):
                for record in client.lease(self.topic, self.group, max_records=len(records), wait_ms=10_000):
                    client.nack(record, reasons[record.value])
                    done += 1
            eventually(lambda: self.open_count(admin) == before + len(records), what="dead letters")

    def open_count(self, admin: QueueAdmin) -> int:
        return next((each.open for each in admin.dead_letter_topics() if each.topic == self.topic), 0)
