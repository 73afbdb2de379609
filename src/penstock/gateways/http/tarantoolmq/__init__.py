"""TarantoolMQ's API, with Penstock's additions: topics, messages, consumer groups, live tails."""
