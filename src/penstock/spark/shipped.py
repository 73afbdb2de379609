"""Penstock in an executor that does not have it installed: unpacked from the file that the driver sent.

Spark puts that file, a zip archive, on the path of every Python worker, and Python finds the package ``penstock`` in it. Its
``__init__`` calls :func:`take_over`, which unpacks what the archive carries once per machine and sends all further imports
there: compiled modules cannot be loaded from an archive, and Python keeps no compiled form of what it imports from one.

On disk: a folder in the user's cache, named after the archive (whose name holds a hash of what is in it), complete or not
there. Only :mod:`penstock.spark.cache` is imported from here, since nothing else is there yet.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import MutableSequence
from pathlib import Path
from types import ModuleType
from typing import Final
from zipfile import ZipFile

from penstock.spark.cache import cache_folder

PACKED: Final = "_packed/"
PLATFORM: Final = "_platform"
DRIVERS_LIBRARIES: Final = "PENSTOCK_DRIVERS_LIBRARIES"
"""In the environment of Python workers on the driver's machine: the folders in which the driver's own Python has its libraries.

Spark runs the cluster's Python there too. What these workers alone need, to commit to a lake, is too much to be sent to everybody.
"""


def platform() -> str:
    """What a compiled module depends on."""
    return f"{sys.implementation.cache_tag} on {sysconfig.get_platform()}"


def take_over(archive: str, packages: tuple[ModuleType, ...]) -> None:
    """Let everything but ``packages``, which are imported already, come from where the archive is unpacked."""
    folder = unpack(Path(archive))
    # Last: what the executor has installed itself of the libraries is as good.
    sys.path.append(str(folder))
    sys.path += filter(None, os.environ.get(DRIVERS_LIBRARIES, "").split(os.pathsep))
    for package in packages:
        path: MutableSequence[str] = package.__path__
        path[:] = [os.path.join(folder, *package.__name__.split("."))]


def unpack(archive: Path) -> Path:
    """The folder with what the archive carries."""
    folder = cache_folder() / archive.stem
    if folder.is_dir():
        return folder
    with ZipFile(archive) as zipped:
        made_for = zipped.read(PLATFORM).decode()
        if made_for != platform():
            raise ImportError(
                f"Penstock was sent by {made_for}, but this executor is {platform()}: install it there (pip install 'penstock[spark]') or use the same Python on both"
            )
        parent = tempfile.mkdtemp(dir=folder.parent)
        try:
            members = [name for name in zipped.namelist() if name.startswith(PACKED)]
            zipped.extractall(parent, members)
            os.rename(os.path.join(parent, PACKED), folder)
        except OSError:
            # Another worker may have been faster.
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(parent, ignore_errors=True)
    return folder
