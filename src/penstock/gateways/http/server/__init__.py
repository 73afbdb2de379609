"""The HTTP listener and everything that the two APIs share: connections, routing, the fast lane, documentation and health."""
