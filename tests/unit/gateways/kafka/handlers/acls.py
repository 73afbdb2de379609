"""A node with access rules, asked by a super user."""

from typing import Any

from penstock.core.security.access import Caller, Principal
from penstock.settings import Authentication, SecuritySettings
from penstock.types import Gateway

SECURED = SecuritySettings(authentication=Authentication.REQUIRED, super_users="User:root")
ROOT = Caller(Principal("User:root"), Gateway.KAFKA, "127.0.0.1")
UNKNOWN, ANY = 0, 1
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, TOKEN, USER = 2, 3, 4, 5, 6, 7
MATCH, LITERAL, PREFIXED = 2, 3, 4
ALL, READ, WRITE = 2, 3, 4
DENY, ALLOW = 2, 3

EXAMPLES: tuple[tuple[Any, ...], ...] = (
    (TOPIC, "orders", PREFIXED, "User:anna", "*", READ, ALLOW),
    (TOPIC, "orders.eu", LITERAL, "User:anna", "*", READ, ALLOW),
    (TOPIC, "*", LITERAL, "User:*", "10.0.0.1", WRITE, DENY),
    (GROUP, "billing", LITERAL, "Role:workers", "*", READ, ALLOW),
    (CLUSTER, "kafka-cluster", LITERAL, "User:anna", "*", ALL, ALLOW),
    (TRANSACTIONAL_ID, "nightly", LITERAL, "Group:etl", "*", WRITE, ALLOW),
    (TOKEN, "t", LITERAL, "User:anna", "*", 8, ALLOW),
    (USER, "bert", LITERAL, "User:anna", "*", 13, ALLOW),
)
"""Resource type, name, pattern, principal, host, operation and permission."""
