"""Errors of pipelines. Each text says what to do next."""

from dataclasses import dataclass


class PipelineError(Exception):
    """A pipeline cannot run, or failed."""


class PipelineUsageError(PipelineError):
    """An option, an argument or a file is wrong."""


class PipelineNotFoundError(PipelineError):
    """There is no pipeline of this name, or it reads a topic that does not exist."""


class FileErrors(PipelineUsageError):
    """All problems of a file, in the order of its lines."""

    def __init__(self, problems: "list[Problem]") -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a file and what to write instead. Line 0 is ``--set`` on the command line."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"--set: {self.text}"
