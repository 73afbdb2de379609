"""What others are told of a node, and what is refused before anything is written."""

from pathlib import Path

import pytest

from penstock.address import Address
from penstock.cluster import opening
from penstock.cluster.opening import advertised, open_cluster
from penstock.errors import PenstockError, Reason
from penstock.metadata.etcd import endpoints
from penstock.runtime.clock import SystemClock, SystemEntropy
from penstock.runtime.data_dir import DataDir
from penstock.runtime.disk import RealDisk
from penstock.settings import ClusterSettings
from tests.support.etcd import free_port


def test_others_are_told_where_each_listener_is() -> None:
    bound = {"kafka": Address("10.0.0.1", 9092), "peer": Address("10.0.0.1", 9093), "tcp": None}
    assert advertised(bound, "", {}) == {"kafka": Address("10.0.0.1", 9092), "peer": Address("10.0.0.1", 9093)}
    assert advertised(bound, "host", {"kafka": Address("outside", 1)}) == {
        "kafka": Address("outside", 1),
        "peer": Address("host", 9093),
    }


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_nobody_can_reach_is_refused(host: str) -> None:
    bound = {"peer": Address(host, 9093)}
    with pytest.raises(PenstockError, match="--advertise") as caught:
        advertised(bound, "", {})
    assert caught.value.reason is Reason.INVALID_CONFIG
    assert advertised(bound, "host", {}) == {"peer": Address("host", 9093)}


async def refusal(data_dir: DataDir, settings: ClusterSettings, cluster: str = "") -> str:
    disk, entropy = RealDisk(), SystemEntropy()
    node = data_dir.identify(disk, entropy, 1)
    if cluster:
        node = data_dir.join(disk, entropy, node, cluster, "id")
    with pytest.raises(PenstockError) as caught:
        await open_cluster(settings, data_dir, node, disk, SystemClock(), entropy)
    assert caught.value.reason is Reason.INVALID_CONFIG
    return caught.value.text


async def test_a_slip_in_the_clusters_name_is_refused_before_etcd_is_asked(tmp_path: Path) -> None:
    # Nobody listens there: asked, it would be another error, and later.
    settings = ClusterSettings(name="gren", etcd=f"127.0.0.1:{free_port()}")
    text = await refusal(DataDir(str(tmp_path)), settings, "green")
    assert "--cluster green" in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (ClusterSettings(name="c", etcd="ftp://host"), "HOST:PORT"),
        (ClusterSettings(name="c", etcd="host", etcd_ca="ca.pem"), "https://"),
        (ClusterSettings(name="c", etcd="https://host", etcd_ca="/absent/ca.pem"), "/absent/ca.pem"),
        (ClusterSettings(name="c", etcd="https://host", etcd_key="key.pem"), "--etcd-cert"),
    ],
)
async def test_settings_that_cannot_work_are_refused(tmp_path: Path, settings: ClusterSettings, said: str) -> None:
    assert said in await refusal(DataDir(str(tmp_path)), settings)


async def test_when_no_etcd_answers_it_is_said_where_one_was_looked_for_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_CONNECT_SECONDS", 0)
    monkeypatch.setattr(endpoints, "READ_SECONDS", 0)
    nobody = f"127.0.0.1:{free_port()}"
    disk, entropy = RealDisk(), SystemEntropy()
    data_dir = DataDir(str(tmp_path))
    node = data_dir.identify(disk, entropy, 1)
    with pytest.raises(PenstockError) as caught:
        await open_cluster(ClusterSettings(name="c", etcd=nobody), data_dir, node, disk, SystemClock(), entropy)
    assert caught.value.text.startswith(
        f"No etcd answered at {nobody} in 0 s; start it, or specify its address with --etcd"
    )
