"""The log against its model again, on an encrypted disk: power failures, kills, failed writes, truncations, full disks.

Everything that holds for a disk in the clear holds, no two bytes are ever encrypted with the same key, nonce and position, and none of
the records can be read on the disk below.
"""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant

import penstock.encryption.disk as disk_module
import penstock.encryption.file as file_module
from penstock.encryption import crypto
from penstock.encryption.directory import unsealed
from penstock.encryption.disk import EncryptedDisk
from penstock.ports import Disk
from tests.support.encrypted import encrypted
from tests.unit.encryption.recording import Recorder
from tests.unit.log.test_log_model import LogMachine

CHUNK_BYTES = 256
"""Instead of 1 MiB, so that a segment has several."""


class EncryptedLogMachine(LogMachine):
    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder()
        self.patch.setattr(crypto, "encryptor_at", self.recorder.encryptor_at)
        for module in (file_module, disk_module):
            self.patch.setattr(module, "CHUNK_BYTES", CHUNK_BYTES)

    def disk_of_process(self) -> Disk:
        self.encrypted: EncryptedDisk = encrypted(self.disk, "/data", self.reports.append)
        return self.encrypted

    @invariant()
    def nothing_is_encrypted_twice(self) -> None:
        assert self.recorder.doubles == []

    @invariant()
    def no_seal_is_missing(self) -> None:
        if hasattr(self, "log"):
            assert list(unsealed(encrypted(self.disk, "/data"), "/data")) == []


EncryptedLogMachine.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestEncryptedLogModel = EncryptedLogMachine.TestCase
