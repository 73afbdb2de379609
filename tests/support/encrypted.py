"""Encryption in tests: a master key, and the disk of a process that has it.

With ``PENSTOCK_TEST_ENCRYPTION=1`` the crash tests and simulations run on encrypted disks.
"""

import os
from collections.abc import Callable

from penstock.encryption.directory import prepare
from penstock.encryption.disk import EncryptedDisk
from penstock.encryption.keys import MasterKeys
from penstock.ports import Disk

KEYS = MasterKeys([bytes(range(32))])
KEY_TEXT = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
"""The same as a line of a key file."""
ENCRYPTS = os.environ.get("PENSTOCK_TEST_ENCRYPTION") == "1"


def encrypted(disk: Disk, data_dir: str, report: Callable[[str], None] = lambda _: None) -> EncryptedDisk:
    """The disk as a new process sees it: it remembers nothing of an earlier one."""
    opened = prepare(disk, data_dir, KEYS, report, was_encrypted=False)
    assert opened is not None
    return opened


def disk_of_process(disk: Disk, data_dir: str, report: Callable[[str], None] = lambda _: None) -> Disk:
    """The disk as a new process sees it, encrypted if the tests are to run with encryption."""
    return encrypted(disk, data_dir, report) if ENCRYPTS else disk
