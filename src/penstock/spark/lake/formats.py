"""The formats of a lake, and the error. The command line imports this module, so it must load fast."""

from enum import StrEnum


class LakeFormat(StrEnum):
    """How a lake records which files belong to it."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"

    @property
    def with_folders(self) -> bool:
        """Whether files contain the columns that are folders too: Iceberg reads partition values from the files."""
        return self is LakeFormat.ICEBERG

    @property
    def data_folder(self) -> str:
        """The folder of the files, below the lake."""
        return "data/" if self is LakeFormat.ICEBERG else ""


class LakeError(Exception):
    """The lake cannot be used in this way."""


def format_named(text: str) -> LakeFormat:
    """The format with this name; :class:`LakeError` if there is none."""
    try:
        return LakeFormat(text.strip().lower())
    except ValueError:
        names = ", ".join(LakeFormat)
        raise LakeError(f"Unknown lake format {text!r}: write one of {names}") from None
