"""Steps in Python: checked without importing them, and imported only when the pipeline runs.

``"steps.py:enrich"`` is a file in the folder of the pipeline, ``"package.module:enrich"`` a module that Python can import.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Function = Callable[..., DataFrame]


def problem_with(text: str, folder: Path) -> str | None:
    """What is wrong with a function; None if it exists and has the right parameters."""
    place, _, function = text.rpartition(":")
    if not place or not function.isidentifier():
        return f'got "{text}", expected "FILE.py:FUNCTION" or "MODULE:FUNCTION"'
    source = source_file(text, folder)
    if source is None:
        return _problem_with_module(place)
    if not source.is_file():
        others = [path.name for path in folder.glob("*.py")]
        close = get_close_matches(Path(place).name, others, n=1)
        return f"there is no file {place} in the same folder" + (f"; did you mean {close[0]}?" if close else "")
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except SyntaxError as error:
        return f"{place}:{error.lineno}: {error.msg}"
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function not in functions:
        close = get_close_matches(function, functions, n=1)
        return f"{place} has no function {function}" + (f"; did you mean {close[0]}?" if close else "")
    return _problem_with_parameters(functions[function], place)


def _problem_with_module(name: str) -> str | None:
    if not all(part.isidentifier() for part in name.split(".")):
        return f'"{name}" is neither a file nor a module; write "FILE.py:FUNCTION" or "MODULE:FUNCTION"'
    # Only the outermost package, because looking further would run its code.
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        return f'module {name} does not exist; install it, or write "FILE.py:FUNCTION" for a file in the same folder'
    return None


def _problem_with_parameters(function: ast.FunctionDef, place: str) -> str | None:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    if required > 2 or (not positional and arguments.vararg is None):
        return f"{place}:{function.lineno}: {function.name} must take a DataFrame, or a DataFrame and spark"
    return None


def source_file(text: str, folder: Path) -> Path | None:
    """The file of a step; None if it is in a module."""
    place = text.rpartition(":")[0]
    return (folder / place).resolve() if place.endswith(".py") else None


def load(text: str, folder: Path) -> Callable[[DataFrame, SparkSession], DataFrame]:
    """The function, ready to be called with a DataFrame and the session."""
    place, _, name = text.rpartition(":")
    source = source_file(text, folder)
    module = import_module(place) if source is None else _imported(source)
    function = cast("Function", getattr(module, name))
    takes_spark = len(inspect.signature(function).parameters) > 1

    def call(frame: DataFrame, spark: SparkSession) -> DataFrame:
        return function(frame, spark) if takes_spark else function(frame)

    return call


def _imported(source: Path) -> object:
    # By its own name and with its folder on the path, because workers import the file by this name.
    if str(source.parent) not in sys.path:
        sys.path.insert(0, str(source.parent))
    known = sys.modules.get(source.stem)
    if known is not None and getattr(known, "__file__", None) == str(source):
        return known
    spec = importlib.util.spec_from_file_location(source.stem, source)
    assert spec is not None, "a file that ends in .py can be imported"
    assert spec.loader is not None, "and has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.stem] = module
    spec.loader.exec_module(module)
    return module
