"""Users in the data directory of a broker that is stopped: the first administrator is created before anybody can log in."""

import asyncio
import os

from penstock.core.security.users import Users, check_password, hash_password
from penstock.encryption.store import SealedStore
from penstock.metadata.port import MetadataStore
from penstock.metadata.sqlite import SqliteStore
from penstock.ports import Keys, Report
from penstock.runtime.clock import SystemClock, SystemEntropy
from penstock.runtime.data_dir import DataDir, DataDirError
from penstock.runtime.disk import RealDisk


def create_user(path: str, user: str, password: str | None, *, admin: bool, keys: Keys | None, report: Report) -> None:
    """Create a user; without a password it can only have API keys. The directory is created if it does not exist.

    DataDirError if a broker runs on the directory, or it belongs to a cluster, whose users are in etcd; PenstockError if the user cannot
    be created. ``keys`` are the master keys of an encrypted directory.
    """
    data_dir = DataDir(path)
    data_dir.own()
    try:
        _check(data_dir)
        asyncio.run(_create(data_dir.path, user, password, admin=admin, keys=keys, report=report))
    finally:
        data_dir.release()


def rewrap_secrets(path: str, keys: Keys, report: Report) -> str:
    """Wrap the keys of the secrets in the metadata store with the current master key. DataDirError if a broker runs on the directory.

    Returns the name of the cluster if its secrets are in etcd, where only a node can do it, and otherwise an empty text.
    """
    data_dir = DataDir(path)
    data_dir.own()
    try:
        cluster = data_dir.read(RealDisk()).cluster
        if not cluster and os.path.exists(f"{data_dir.path}/metadata.sqlite"):
            asyncio.run(_rewrap(data_dir.path, keys, report))
        return cluster
    finally:
        data_dir.release()


async def _rewrap(path: str, keys: Keys, report: Report) -> None:
    plain = await SqliteStore.open(f"{path}/metadata.sqlite")
    try:
        await SealedStore.open(plain, keys, report)
    finally:
        await plain.close()


def _check(data_dir: DataDir) -> None:
    disk = RealDisk()
    if not disk.exists(os.path.join(data_dir.path, "node.json")):
        # The first start gives it its node.
        return
    node = data_dir.read(disk)
    if node.cluster:
        raise DataDirError(
            f"{data_dir.path} belongs to cluster {node.cluster}, whose users are in etcd: name a file with the password of the "
            "user admin in security.admin_password_file, and start a node"
        )


async def _create(
    path: str, user: str, password: str | None, *, admin: bool, keys: Keys | None, report: Report
) -> None:
    entropy = SystemEntropy()
    plain = await SqliteStore.open(f"{path}/metadata.sqlite")
    try:
        store: MetadataStore = await SealedStore.open(plain, keys, report)
        users = Users(store, entropy, lambda: None)
        await users.load()
        scram = {} if password is None else hash_password(check_password(password), entropy.secret)
        await users.create(user, scram, SystemClock().now_ms(), admin=admin)
    finally:
        await plain.close()
