"""The ticker daemon: ticks, rotation, retries and housekeeping for any number of databases.

``pgqpy ticker`` runs it; ``run(Config.from_dsns(dsn))`` is the same from Python, and
``async with ticking(dsn):`` serves one database beside a program with asyncio.
"""

from pgqpy_ticker.beside import ticking
from pgqpy_ticker.config import Config, ConfigError, Database
from pgqpy_ticker.daemon import Daemon, run

__all__ = ["Config", "ConfigError", "Daemon", "Database", "run", "ticking"]
