"""The broker's configuration: what may be set, its defaults, and where each value came from.

``settings.py`` has a frozen struct per section, ``address.py`` the one type of our own, ``sources.py`` reads TOML,
environment and flags, and ``loading.py`` lays them over the defaults::

    settings = load(Path("penstock.toml"), os.environ, {"listeners.kafka": "127.0.0.1:0"})
    settings.log.flush            # Flush.SYNC
    settings.sources["log.flush"] # Source(DEFAULT)

A key that is not known, or a value that is not right, is a :class:`ConfigError` that names the path, what was found,
what is wanted, and where it came from. Nothing here reads the process's environment or arguments by itself.
"""

from penstock.address import Address, parse_address
from penstock.config.loading import load
from penstock.config.settings import (
    GroupSettings,
    GrpcSettings,
    HttpSettings,
    LimitSettings,
    ListenerSettings,
    LogFormat,
    LogLevel,
    LogSettings,
    QueueSettings,
    ServerSettings,
    Settings,
    TcpSettings,
    TopicSettings,
)
from penstock.config.sources import ConfigError, Source, SourceKind
from penstock.types import Acks

__all__ = [
    "Acks",
    "Address",
    "ConfigError",
    "GroupSettings",
    "GrpcSettings",
    "HttpSettings",
    "LimitSettings",
    "ListenerSettings",
    "LogFormat",
    "LogLevel",
    "LogSettings",
    "QueueSettings",
    "ServerSettings",
    "Settings",
    "Source",
    "SourceKind",
    "TcpSettings",
    "TopicSettings",
    "load",
    "parse_address",
]
