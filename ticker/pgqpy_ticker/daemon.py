"""The process: signals, reloading, the service manager, and one worker a database."""

from __future__ import annotations

import asyncio
import signal

from pgqpy import telemetry
from pgqpy_ticker import logs
from pgqpy_ticker.config import Config, ConfigError, Database
from pgqpy_ticker.jobs import cancel
from pgqpy_ticker.served import Record, Served, State
from pgqpy_ticker.systemd import Systemd
from pgqpy_ticker.web import Endpoint
from pgqpy_ticker.worker import Worker


class Daemon:
    """Serves the databases of a configuration until SIGTERM or SIGINT.

    SIGHUP reads the configuration again: databases may be added and removed, and other settings
    changed, without an effect on databases whose settings are unchanged.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._workers: dict[str, tuple[Worker, asyncio.Task[None]]] = {}
        self._endpoint: Endpoint | None = None
        self._systemd = Systemd()
        self._log = logs.Log()
        self._record: Record | None = None
        if (meter := telemetry.meter()) is not None:
            from pgqpy_ticker.otel import measure

            self._record = measure(meter, self._served)

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
            await cancel(*jobs)
            await self._serve(())
            self._close_endpoint()
        self._log.info("stopped")

    # Workers

    async def _serve(self, databases: tuple[Database, ...]) -> None:
        """Start and stop workers until they match the configuration."""
        wanted = {database.name: database for database in databases}
        leaving = [
            name
            for name, (worker, _) in self._workers.items()
            if name not in wanted or wanted[name].dsn != worker.served.database.dsn
        ]
        await cancel(*(self._workers.pop(name)[1] for name in leaving))
        for name, database in wanted.items():
            if name in self._workers:
                self._workers[name][0].served.database = database
            else:
                worker = Worker(Served(database, record=self._record))
                self._workers[name] = worker, asyncio.create_task(worker.run(), name=name)

    def _served(self) -> list[Served]:
        """Return the databases that are served now; also called from the endpoint's threads."""
        return [worker.served for worker, _ in self._workers.copy().values()]

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
                opened = Endpoint(config.http, self._served)
            except OSError as error:
                raise ConfigError(f"cannot listen on http = {config.http}: {error}") from error
            self._log.info("answering http", extra={"address": opened.address})
        self._close_endpoint()
        self._endpoint = opened

    def _close_endpoint(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def _status(self) -> str:
        states = [served.state for served in self._served()]
        return ", ".join(f"{states.count(state)} {state.value}" for state in State)

    async def _tell_ready(self) -> None:
        """Report ready when each database is led, stood by for, or known to be away: a service that
        waited for all databases could not start while one of them is down."""
        for worker, _ in list(self._workers.values()):
            await worker.settled.wait()
        self._log.info("ready", extra={"databases": self._status()})
        self._systemd.ready(self._status())

    async def _show_life(self, period: float) -> None:
        # From the event loop: if that hangs, systemd must restart the daemon.
        while True:
            self._systemd.alive()
            self._systemd.status(self._status())
            await asyncio.sleep(period)


def run(config: Config) -> None:
    """Set up logging and serve ``config`` until SIGTERM or SIGINT.

    Raises:
        ConfigError: the HTTP endpoint cannot be opened.
    """
    logs.setup(config.log_level, config.log_format)
    Daemon(config).run()
