"""Reading the broker's configuration.

``sources.py`` reads TOML, environment and flags, ``loading.py`` applies them to the defaults of :mod:`penstock.settings`,
and ``describe.py`` shows the result to people::

    settings = load(Path("penstock.toml"), os.environ, {"listeners.kafka": "127.0.0.1:0"})
    settings.log.flush              # Flush.SYNC
    settings.source_of("log.flush") # SettingSource(DEFAULT)

For an unknown key or an invalid value, :class:`ConfigError` has the path, the value, what is expected, and the source.
Nothing here reads the environment or arguments of the process by itself.
"""

from penstock.config.loading import load
from penstock.config.sources import ConfigError

__all__ = ["ConfigError", "load"]
