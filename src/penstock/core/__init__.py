"""The rules: topics, produce, fetch, groups. No sockets, no protocol and no clock of its own lives here.

A gateway translates a request into calls of this package; what a call decides holds for every gateway alike.
"""
