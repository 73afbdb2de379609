"""Kills and power failures on encrypted disks, for every run. ``PENSTOCK_TEST_ENCRYPTION=1 make test-crash`` runs all crash tests so."""

import pytest

import tests.support.encrypted as encryption
from tests.crash.load import ConfluentProducing
from tests.crash.simulated_world import Trouble
from tests.crash.test_kill import check_kept
from tests.crash.test_simulated_node import History
from tests.support.clients import PRODUCERS, Record

SEEDS = 3
ROUNDS = 3


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("trouble", Trouble, ids=lambda trouble: trouble.value)
async def test_an_encrypted_node_keeps_its_promises(monkeypatch, trouble, seed) -> None:
    monkeypatch.setattr(encryption, "ENCRYPTS", True)
    history = History(seed, trouble)
    await history.run()
    assert history.node.disk.exists("/data/encryption.json")


def test_kills_of_an_encrypted_broker_lose_nothing_acknowledged(tmp_path, start_broker) -> None:
    key = tmp_path / "key"
    key.write_text(encryption.KEY_TEXT)
    key.chmod(0o600)
    broker = start_broker({"topic_defaults.segment.bytes": 20_000, "encryption.key_file": str(key)})
    topic = "killed"
    PRODUCERS["confluent"](broker.bootstrap, topic, [Record(b"0", partition=0)])
    producing = ConfluentProducing(broker.bootstrap, topic, [0])
    producing.sent[0] = 1
    producing._note(0, 0, None)
    producing.start()
    for number in range(ROUNDS):
        producing.wait_for_more(400)
        promised = producing.acknowledged()
        broker.kill()
        broker.start()
        check_kept(broker.bootstrap, topic, promised, f"round {number}")
    producing.stop()
    check_kept(broker.bootstrap, topic, producing.acknowledged(), "the end")
    assert broker.stop() == 0
