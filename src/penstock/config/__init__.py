"""Reading the broker's configuration.

``sources.py`` reads TOML, environment and flags, ``loading.py`` lays them over the defaults of :mod:`penstock.settings`,
and ``describe.py`` shows the result to people::

    settings = load(Path("penstock.toml"), os.environ, {"listeners.kafka": "127.0.0.1:0"})
    settings.log.flush              # Flush.SYNC
    settings.source_of("log.flush") # Source(DEFAULT)

An unknown key or an invalid value is a :class:`ConfigError` that names the path, what was found, what is wanted, and
where it came from. Nothing here reads the process's environment or arguments by itself.
"""

from penstock.config.loading import load
from penstock.config.sources import ConfigError

__all__ = ["ConfigError", "load"]
