"""The part of Penstock that executors on other machines need, in one file that Spark sends to them.

Spark sends Python code as a zip archive, on every kind of cluster and through Spark Connect, for tasks and for the planning of data
sources. This one contains Penstock and the compiled libraries that it needs; :mod:`penstock.spark.shipped` unpacks it. PySpark, pyarrow,
NumPy and pandas are not in it: a cluster that runs Python data sources has them. For ``spark-submit``::

    spark-submit --py-files "$(python -m penstock.spark.shipping)" job.py

On disk: archives in the user's cache, named by a hash of their content. A file is complete when it gets its name.
"""

import hashlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import penstock
from penstock.spark import shipped
from penstock.spark.cache import cache_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIBRARIES: Final = ("cramjam", "crc32c", "msgspec")
"""The compiled libraries that the client and the source import. A test imports all of the source with nothing else."""
FOLDERS: Final = ("client", "operations", "records", "spark", "wire")
"""The packages of Penstock that a task may import, besides the modules at the top; the import contracts ensure it."""
_NOT_FOR_TASKS: Final = frozenset({"__main__.py", "server.py"})
_LEFT_OUT: Final = (".pyc", ".pyi")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_HOOK: Final = """
import penstock.spark.shipped  # noqa

penstock.spark.shipped.take_over(__loader__.archive, (sys.modules[__name__], penstock.spark))
"""


class ShippingError(RuntimeError):
    """Something cannot be sent to executors."""


def ship(spark: "SparkSession", modules: Sequence[str] = ()) -> Path:
    """Send Penstock, and modules of the user, to the executors of a session. Call it before the first query that needs them."""
    archive = package(modules)
    if is_remote(spark):
        spark.addArtifacts(str(archive), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(archive))
    return archive


def is_remote(spark: "SparkSession") -> bool:
    """Whether the session uses Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def package(modules: Sequence[str] = ()) -> Path:
    """The archive; ``modules`` are top-level names, importable here, of Python code without compiled parts."""
    running_from = getattr(penstock.__loader__, "archive", None)
    if running_from is not None and not modules:
        # This driver runs from such an archive itself, which is sent to the others.
        return Path(running_from)
    files = dict(_files(modules))
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    archive = cache_folder() / f"penstock-{digest.hexdigest()[:16]}.zip"
    if not archive.exists():
        descriptor, temporary = tempfile.mkstemp(dir=archive.parent)
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name in sorted(files):
                zipped.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)
        os.replace(temporary, archive)
    return archive


def _files(modules: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The name and the content of each file in the archive."""
    root = Path(penstock.__file__).parent
    yield shipped.PLATFORM, shipped.platform().encode()
    yield "penstock/__init__.py", (root / "__init__.py").read_bytes() + f"\nimport sys\n{_HOOK}".encode()
    for name in ("__init__.py", "cache.py", "shipped.py"):
        yield f"penstock/spark/{name}", (root / "spark" / name).read_bytes()
    for path in sorted(root.glob("*.py")):
        if path.name not in _NOT_FOR_TASKS:
            yield f"{shipped.PACKED}penstock/{path.name}", path.read_bytes()
    for folder in FOLDERS:
        yield from _tree(root / folder, f"{shipped.PACKED}penstock/{folder}")
    for library in LIBRARIES:
        yield from _distribution(library)
    for module in modules:
        for name, content in _module(module):
            if not name.endswith(".py"):
                raise ShippingError(
                    f"Module {module!r} cannot be sent to executors: {name} is not Python code and cannot be loaded from an archive; install it on the executors, or send an environment with spark.archives"
                )
            yield name, content


def _distribution(name: str) -> Iterator[tuple[str, bytes]]:
    """All files that pip installed: a library may read its own version, or contain others beside its package."""
    for path in distribution(name).files or ():
        if ".." not in path.parts and not path.name.endswith(_LEFT_OUT):
            yield f"{shipped.PACKED}{path.as_posix()}", path.read_binary()


def _module(name: str) -> Iterator[tuple[str, bytes]]:
    spec = find_spec(name) if "." not in name else None
    if spec is None or spec.origin is None or not os.path.exists(spec.origin):
        raise ShippingError(
            f"Module {name!r} cannot be sent to executors: specify a top-level module that can be imported here"
        )
    origin = Path(spec.origin)
    if spec.submodule_search_locations:
        yield from _tree(origin.parent, name)
    else:
        yield origin.name, origin.read_bytes()


def _tree(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(_LEFT_OUT):
            yield f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes()


if __name__ == "__main__":
    sys.stdout.write(f"{package()}\n")
