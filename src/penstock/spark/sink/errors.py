"""What a row may be that cannot be written. A wrong option or column is told on the driver, as an ``OptionError``."""


class RowError(ValueError):
    """A row that names no topic, or a partition that is not there."""


class CheckpointError(RuntimeError):
    """A batch whose number lies before the last one committed: the checkpoint is older than what the topics have."""
