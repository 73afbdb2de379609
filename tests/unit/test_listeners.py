"""The listener for other nodes, as a node opens it: its certificate, its own places, and what is refused off loopback."""

import contextlib
from pathlib import Path

import pytest

from penstock.address import Address
from penstock.errors import PenstockError, Reason
from penstock.listeners import PEER, Listeners
from penstock.settings import (
    ClusterSettings,
    LimitSettings,
    ListenerSettings,
    PeerTlsMode,
    SecuritySettings,
    ServerSettings,
    Settings,
    TlsSettings,
)
from penstock.transport.acceptor import Reception
from penstock.transport.listener import Listener
from tests.support.node_certificates import CLUSTER, authority

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
REQUIRE, ACCEPT, OFF = PeerTlsMode.REQUIRE, PeerTlsMode.ACCEPT, PeerTlsMode.OFF


def settings_of(mode: PeerTlsMode, files: TlsSettings | None, host: str, *, insecure: bool = False) -> Settings:
    return Settings(
        server=ServerSettings(node_id=1),
        cluster=ClusterSettings(name=CLUSTER, peer_tls=mode),
        listeners=ListenerSettings(kafka=Address(LOOPBACK, 0), http=None, tcp=None, grpc=None, peer=Address(host, 0)),
        security=SecuritySettings(insecure=insecure),
        listener_tls={} if files is None else {PEER: files},
    )


async def opened(stack: contextlib.AsyncExitStack, settings: Settings) -> tuple[Listeners, Reception]:
    listeners, reception = Listeners(settings), Reception(LimitSettings())
    listeners.bind(reception, stack, 0)
    return listeners, reception


@pytest.mark.parametrize("mode", [ACCEPT, REQUIRE])
async def test_the_peer_listener_has_the_nodes_certificate_and_is_read_again_with_the_others(
    tmp_path: Path, mode: PeerTlsMode
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        listeners, _ = await opened(stack, settings_of(mode, authority(tmp_path).node(1), LOOPBACK))
        peer = listeners.open[PEER]
        assert peer.tls is not None
        assert peer.tls is listeners.peer_tls.certificate
        assert listeners.tls == [peer.tls]
        assert peer.allows_plain is (mode is ACCEPT)
        assert listeners.open["kafka"].tls is None
        assert "tls=peer" in list(listeners.ready_words())


async def test_clients_take_no_places_of_nodes_and_all_are_counted_together(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        listeners, reception = await opened(stack, settings_of(OFF, None, LOOPBACK))

        def reception_of(listener: Listener) -> Reception:
            found = getattr(listener.accept, "__self__", None)
            assert isinstance(found, Reception)
            return found

        of_nodes = reception_of(listeners.open[PEER])
        assert reception_of(listeners.open["kafka"]) is reception
        assert of_nodes is not reception
        assert of_nodes.failures is reception.failures
        assert not of_nodes.until_authenticated


async def test_a_broker_alone_has_no_tls_with_nodes() -> None:
    async with contextlib.AsyncExitStack() as stack:
        alone = Settings(listeners=ListenerSettings(kafka=Address(LOOPBACK, 0), http=None, tcp=None, grpc=None))
        listeners, _ = await opened(stack, alone)
        assert PEER not in listeners.open
        assert not listeners.peer_tls.is_offered


async def test_off_loopback_nodes_need_tls_from_all_or_a_setting_that_says_otherwise(tmp_path: Path) -> None:
    files = authority(tmp_path).node(1)
    for mode in (OFF, ACCEPT):
        given = None if mode is OFF else files
        async with contextlib.AsyncExitStack() as stack:
            with pytest.raises(PenstockError, match=r"cluster\.peer_tls") as refused:
                await opened(stack, settings_of(mode, given, EVERYWHERE))
            assert refused.value.reason is Reason.INVALID_CONFIG
        async with contextlib.AsyncExitStack() as stack:
            listeners, _ = await opened(stack, settings_of(mode, given, EVERYWHERE, insecure=True))
            assert listeners.exposure.is_insecure
    async with contextlib.AsyncExitStack() as stack:
        listeners, _ = await opened(stack, settings_of(REQUIRE, files, EVERYWHERE))
        assert not listeners.exposure.is_insecure


async def test_a_certificate_of_another_node_is_refused_before_any_port_is_served(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        with pytest.raises(PenstockError, match=r"TLS of the peer listener: .*node/2") as refused:
            await opened(stack, settings_of(REQUIRE, authority(tmp_path).node(2), LOOPBACK))
        assert refused.value.reason is Reason.INVALID_CONFIG
