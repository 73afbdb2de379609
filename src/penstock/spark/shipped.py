"""Penstock in an executor that does not have it installed: unpacked from the file that the driver sent.

Spark puts that file, a zip archive, on the path of every Python worker, and Python finds the package ``penstock`` in it. Its
``__init__`` calls :func:`take_over`, which unpacks the archive once per machine and directs all further imports there: compiled modules
cannot be loaded from an archive, and Python stores no compiled form of what it imports from one.

On disk: a folder in the user's cache with the name of the archive, which contains a hash of its content. Of Penstock, this module can
import only :mod:`penstock.spark.cache`, because nothing else is unpacked yet.
"""

import os
import sys
import sysconfig
from collections.abc import MutableSequence
from pathlib import Path
from types import ModuleType
from typing import Final
from zipfile import ZipFile

from penstock.spark.cache import made_once

PACKED: Final = "_packed/"
PLATFORM: Final = "_platform"
DRIVERS_LIBRARIES: Final = "PENSTOCK_DRIVERS_LIBRARIES"
"""In the environment of Python workers on the driver's machine: the folders with the libraries of the driver's own Python.

Spark runs the cluster's Python there too. The libraries that only these workers need, to commit to a lake, are too large to send to
every executor.
"""


def platform() -> str:
    """What a compiled module depends on."""
    return f"{sys.implementation.cache_tag} on {sysconfig.get_platform()}"


def take_over(archive: str, packages: tuple[ModuleType, ...]) -> None:
    """Import everything except ``packages``, which are imported already, from the unpacked archive."""
    folder = unpack(Path(archive))
    # Last, because libraries that are installed in the executor are as good.
    sys.path.append(str(folder))
    sys.path += filter(None, os.environ.get(DRIVERS_LIBRARIES, "").split(os.pathsep))
    for package in packages:
        path: MutableSequence[str] = package.__path__
        path[:] = [os.path.join(folder, *package.__name__.split("."))]


def unpack(archive: Path) -> Path:
    """The folder with the content of the archive."""
    return made_once(archive.stem, lambda folder: _extract(archive, folder))


def _extract(archive: Path, folder: Path) -> None:
    with ZipFile(archive) as zipped:
        made_for = zipped.read(PLATFORM).decode()
        if made_for != platform():
            raise ImportError(
                f"Penstock was sent by {made_for}, but this executor is {platform()}: install it there (pip install 'penstock[spark]') or use the same Python on both"
            )
        for member in zipped.infolist():
            if member.filename.startswith(PACKED):
                member.filename = member.filename.removeprefix(PACKED)
                zipped.extract(member, folder)
