"""What goes wrong with a pipeline through no fault of ours: a sentence that says what to do next."""


class PipelineError(Exception):
    """A pipeline that cannot run, or that failed. Its text is for people."""


class PipelineUsageError(PipelineError):
    """What was asked for is wrong: an option, an argument, a file."""


class PipelineNotFoundError(PipelineError):
    """No pipeline of this name is remembered, or it reads a topic that is not there."""


class FileErrors(PipelineUsageError):
    """Everything that is wrong with a file: one :class:`Problem` each, in the order of its lines."""

    def __init__(self, problems: "list[Problem]") -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        super().__init__("\n".join(map(str, self.problems)))


class Problem:
    """One thing wrong with a file: where, what, and what to write instead. Line 0 is ``--set`` on the command line."""

    __slots__ = ("file", "line", "text")

    def __init__(self, file: str, line: int, text: str) -> None:
        self.file = file
        self.line = line
        self.text = text

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"--set: {self.text}"
