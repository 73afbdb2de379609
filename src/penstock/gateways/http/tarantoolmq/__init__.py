"""TarantoolMQ's API, with additions of our own: topics, messages, consumer groups, live tails."""
