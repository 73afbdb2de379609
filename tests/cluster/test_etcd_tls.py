"""TLS to etcd: it works with certificates on both sides, and each mistake is told with what to do about it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import PenstockError, Reason
from penstock.metadata.etcd.endpoints import Tls
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.port import Put
from tests.support.clients import Record, consume_confluent, produce_confluent
from tests.support.cluster_processes import NodeProcess
from tests.support.etcd import SECONDS_MAX, Certificates, Etcd, make_certificates, opened, running_etcd

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def ours(folder: Path) -> Certificates:
    return make_certificates(folder / "ours")


@pytest.fixture(scope="module")
def others(folder: Path) -> Certificates:
    """By an authority that etcd does not know."""
    return make_certificates(folder / "others")


@pytest.fixture(scope="module")
def guarded(folder: Path, ours: Certificates) -> Iterator[Etcd]:
    with running_etcd(folder / "guarded", certificates=ours) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Etcd]:
    with running_etcd(folder / "plain") as etcd:
        yield etcd


async def test_with_certificates_on_both_sides_everything_works(guarded: Etcd) -> None:
    async with opened(guarded) as store:
        heard: list[str] = []
        store.subscribe("", lambda events: heard.extend(event.key for event in events))
        lease = await store.grant(60_000)
        await store.txn([], [Put("a", b"1", lease)])
        assert await store.keep_alive(lease) > 0
        assert len((await store.range("")).entries) == 1
        assert heard == ["a"]


async def refusal(etcd: Etcd, tls: Tls | None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("penstock.metadata.etcd.endpoints.READ_SECONDS", 0.5)
    with pytest.raises(PenstockError) as caught:
        await EtcdStore.open("c", etcd.addresses, tls)
    assert caught.value.reason is Reason.INVALID_CONFIG
    return caught.value.text


async def test_a_wrong_authority_is_told(
    guarded: Etcd, ours: Certificates, others: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = await refusal(guarded, replace(ours.tls(), ca=others.tls().ca), monkeypatch)
    assert "--etcd-ca" in text


async def test_https_without_any_file_is_told_what_is_missing(guarded: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--etcd-ca" in await refusal(guarded, Tls(), monkeypatch)


async def test_a_missing_certificate_is_told(
    guarded: Etcd, ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--etcd-cert" in await refusal(guarded, Tls(ours.tls().ca), monkeypatch)


async def test_a_certificate_that_etcd_does_not_take_is_told(
    guarded: Etcd, ours: Certificates, others: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--etcd-cert" in await refusal(guarded, replace(others.tls(), ca=ours.tls().ca), monkeypatch)


def test_a_node_without_a_certificate_ends_with_one_line_and_2(
    guarded: Etcd, ours: Certificates, tmp_path: Path
) -> None:
    off = ("--http", "off", "--tcp", "off", "--grpc", "off")
    listeners = ("--kafka", "127.0.0.1:0", "--peer", "127.0.0.1:0", *off)
    etcd = ("--etcd", f"https://{guarded.addresses[0]}", "--etcd-ca", str(ours.ca))
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", "--cluster", "c", "--data-dir", str(tmp_path), *listeners, *etcd],
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    # What grpc has to say of it by itself would stand before.
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: etcd (")
    assert "--etcd-cert" in line
    assert done.returncode == 2


async def test_http_to_an_etcd_with_tls_is_told(guarded: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    text = await refusal(guarded, None, monkeypatch)
    assert "https://" in text
    # From here it looks like any other port that is not etcd's.
    assert "or may not be etcd" in text
    assert " cannot be reached for " in text


async def test_https_to_an_etcd_without_tls_is_told(
    plain: Etcd, ours: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "http://" in await refusal(plain, ours.tls(), monkeypatch)


def settings_of(certificates: Certificates, ca: Path) -> dict[str, object]:
    return {
        "cluster.replication_factor": 1,
        "cluster.min_in_sync": 1,
        "cluster.etcd_ca": ca,
        "cluster.etcd_cert": certificates.certificate,
        "cluster.etcd_key": certificates.key,
    }


def test_a_node_serves_on_an_etcd_with_tls(guarded: Etcd, ours: Certificates, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "one", 1, guarded.urls, settings_of(ours, ours.ca), gateways=False) as node:
        produce_confluent(node.bootstrap, "orders", [Record(b"1")])
        assert [record.value for record in consume_confluent(node.bootstrap, "orders", 1)] == [b"1"]


def test_a_node_that_does_not_trust_etcd_ends_with_a_sentence(
    guarded: Etcd, ours: Certificates, others: Certificates, tmp_path: Path
) -> None:
    node = NodeProcess(tmp_path / "one", 1, guarded.urls, settings_of(ours, others.ca), gateways=False)
    with pytest.raises(RuntimeError, match="exit code 2"):
        node.start()
    (error,) = [line for line in node.log_text().splitlines() if line.startswith("error: ")]
    assert "--etcd-ca" in error
    assert "Traceback" not in node.log_text()
