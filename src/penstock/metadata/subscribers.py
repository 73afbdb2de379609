"""The subscriptions of a store. Shared by all stores, so that all deliver alike: one call per subscriber and transaction."""

from penstock.metadata.port import Event, Subscriber, Unsubscribe


class Subscribers:
    """The subscriptions of one store, called in the order in which they were made."""

    def __init__(self) -> None:
        self._by_token: dict[int, tuple[str, Subscriber]] = {}
        self._next_token = 0

    def add(self, prefix: str, subscriber: Subscriber) -> Unsubscribe:
        """Add one; the returned call removes it immediately, even between two subscribers of a transaction."""
        token = self._next_token
        self._next_token += 1
        self._by_token[token] = (prefix, subscriber)

        def unsubscribe() -> None:
            self._by_token.pop(token, None)

        return unsubscribe

    def deliver(self, events: list[Event]) -> None:
        """Call the subscribers with the events under their prefix. If one fails, the others are still called; then it is raised."""
        failed: Exception | None = None
        for token, (prefix, subscriber) in list(self._by_token.items()):
            if token not in self._by_token:
                continue
            wanted = [event for event in events if event.key.startswith(prefix)]
            if wanted:
                try:
                    subscriber(wanted)
                except Exception as error:  # noqa: BLE001 - raised below
                    failed = failed or error
        if failed is not None:
            raise failed
