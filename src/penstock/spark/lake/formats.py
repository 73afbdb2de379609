"""What a lake is made of, and the error that a person sees. Imported by the command line: nothing heavy here."""

from enum import StrEnum


class LakeFormat(StrEnum):
    """How a lake says which files belong to it."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"

    @property
    def with_folders(self) -> bool:
        """Whether files hold the columns that are folders as well: Iceberg takes partition values from the files."""
        return self is LakeFormat.ICEBERG

    @property
    def data_folder(self) -> str:
        """Where files lie, below the lake."""
        return "data/" if self is LakeFormat.ICEBERG else ""


class LakeError(Exception):
    """The lake cannot be used as asked; the text says what to do."""


def format_named(text: str) -> LakeFormat:
    """The format of this name; :class:`LakeError` lists those there are."""
    try:
        return LakeFormat(text.strip().lower())
    except ValueError:
        names = ", ".join(LakeFormat)
        raise LakeError(f"Unknown lake format {text!r}: write one of {names}") from None
