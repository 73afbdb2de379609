"""One contract, every store. A new store (etcd) joins by adding itself to ``STORES``."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import MetadataStore
from penstock.metadata.sqlite import SqliteStore


async def memory_store(folder: Path) -> MetadataStore:
    return MemoryStore()


async def sqlite_store(folder: Path) -> MetadataStore:
    return await SqliteStore.open(str(folder / "metadata.sqlite"))


STORES = [memory_store, sqlite_store]


@pytest_asyncio.fixture(params=STORES, ids=lambda make: make.__name__)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    made: MetadataStore = await request.param(tmp_path)
    yield made
    await made.close()
