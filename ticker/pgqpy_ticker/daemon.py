"""The process: signals, reloading, the service manager, and one worker a database."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass

from pgqpy_ticker import logs
from pgqpy_ticker.config import Config, ConfigError, Database
from pgqpy_ticker.health import State
from pgqpy_ticker.metrics import Metrics
from pgqpy_ticker.systemd import Systemd
from pgqpy_ticker.web import Endpoint
from pgqpy_ticker.worker import Worker


@dataclass(slots=True)
class _Served:
    worker: Worker
    task: asyncio.Task[None]


class Daemon:
    """Serves the databases of a configuration until SIGTERM or SIGINT.

    SIGHUP reads the configuration again: databases may be added and removed, and other settings
    changed, without an effect on databases whose settings are unchanged.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._metrics = Metrics()
        self._served: dict[str, _Served] = {}
        self._endpoint: Endpoint | None = None
        self._systemd = Systemd()
        self._log = logs.Log()

    def run(self) -> None:
        """Run in the foreground, in the main thread. Returns after a clean stop.

        Raises:
            ConfigError: the HTTP endpoint cannot be opened.
        """
        asyncio.run(self._main())

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        stop, reload = asyncio.Event(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, stop.set)
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        jobs = [asyncio.create_task(self._reload_on(reload))]
        if self._systemd.watchdog is not None:
            jobs.append(asyncio.create_task(self._show_life(self._systemd.watchdog / 2)))
        try:
            self._open_endpoint(self.config)
            await self._serve(self.config.databases)
            jobs.append(asyncio.create_task(self._tell_ready()))
            await stop.wait()
            self._log.info("stopping")
            self._systemd.stopping()
        finally:
            await _cancel(*jobs)
            await self._serve(())
            self._close_endpoint()
        self._log.info("stopped")

    # Workers

    async def _serve(self, databases: tuple[Database, ...]) -> None:
        """Start and stop workers until they match the configuration."""
        wanted = {database.name: database for database in databases}
        leaving = [
            name
            for name, served in self._served.items()
            if name not in wanted or wanted[name].dsn != served.worker.database.dsn
        ]
        await _cancel(*(self._served.pop(name).task for name in leaving))
        for name, database in wanted.items():
            if name in self._served:
                self._served[name].worker.database = database
            else:
                worker = Worker(database, self._metrics)
                self._served[name] = _Served(worker, asyncio.create_task(worker.run(), name=name))

    # Reloading

    async def _reload_on(self, asked: asyncio.Event) -> None:
        while True:
            await asked.wait()
            asked.clear()
            self._systemd.reloading()
            try:
                await self._reload()
            except ConfigError as error:
                self._log.error("not reloaded, the settings stay as they were: %s", error)
            self._systemd.ready(self._status())

    async def _reload(self) -> None:
        config = self.config.reload()
        if config.http != self.config.http:
            self._open_endpoint(config)
        logs.setup(config.log_level, config.log_format)
        await self._serve(config.databases)
        self.config = config
        self._log.info("reloaded", extra={"databases": len(config.databases)})

    # Reports

    def _open_endpoint(self, config: Config) -> None:
        """Open the new one before closing the old: if the port is taken, nothing changes."""
        opened = None
        if config.http is not None:
            try:
                opened = Endpoint(config.http, self._health, self._metrics.page)
            except OSError as error:
                raise ConfigError(f"cannot listen on http = {config.http}: {error}") from error
            self._log.info("answering http", extra={"address": opened.address})
        self._close_endpoint()
        self._endpoint = opened

    def _close_endpoint(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def _health(self) -> tuple[bool, dict[str, object]]:
        """Report the health; called from the endpoint's threads."""
        now = time.monotonic()
        workers = [served.worker for served in list(self._served.values())]
        well = all(w.pulse.healthy(now, w.database.healthy_within) for w in workers)
        report: dict[str, object] = {
            w.database.name: w.pulse.report(now, w.database.healthy_within) for w in workers
        }
        return well, report

    def _status(self) -> str:
        states = [served.worker.pulse.state for served in self._served.values()]
        return ", ".join(f"{states.count(state)} {state.value}" for state in State)

    async def _tell_ready(self) -> None:
        """Report ready when each database is led, stood by for, or known to be away: a service that
        waited for all databases could not start while one of them is down."""
        for served in list(self._served.values()):
            await served.worker.settled.wait()
        self._log.info("ready", extra={"databases": self._status()})
        self._systemd.ready(self._status())

    async def _show_life(self, period: float) -> None:
        # From the event loop: if that hangs, systemd must restart the daemon.
        while True:
            self._systemd.alive()
            self._systemd.status(self._status())
            await asyncio.sleep(period)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)


def run(config: Config) -> None:
    """Set up logging and serve ``config`` until SIGTERM or SIGINT.

    Raises:
        ConfigError: the HTTP endpoint cannot be opened.
    """
    logs.setup(config.log_level, config.log_format)
    Daemon(config).run()
