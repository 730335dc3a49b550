"""Runs the neutral benchmark beside its peers, all natively: see README.md.

    python -m benchmarks.neutral CHECKOUT run --systems pgqpy-tasks,pgqpy-events,pgmq ...

CHECKOUT is a clone of hardbyte/postgresql-job-queue-benchmarking; all that follows goes to its own
command. This Python (3.12 or newer) needs the packages of its pyproject.toml, of ours, and of the
peers. The server is Debian's PostgreSQL 15, which has pgstattuple. PGMQ_SQL names pgmq's SQL file.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg

from pgqpy.embedded import EmbeddedError, Server

OURS = Path(__file__).parent
PEERS = ("procrastinate", "pgmq", "pgque")


class Postgres:
    """The server; a stopped one keeps its data until it is removed."""

    def __init__(self, settings: dict[str, str | int | bool]) -> None:
        self.settings = settings
        self.data: Path | None = None
        self.dsn = f"postgresql://postgres@localhost:{settings['port']}/postgres"

    def start(self, _: str = "") -> None:
        if self.data is None:
            self.data = Path(tempfile.mkdtemp())
            self.data.chmod(0o777)  # for the account of the server, if this one is root
            self.server = Server(self.data / "data", version=15, settings=self.settings)
            self.server.start()
            with psycopg.connect(self.dsn, autocommit=True) as conn:
                conn.execute("create role bench superuser login")
        else:
            with suppress(EmbeddedError):  # it runs
                self.server.start()

    def stop(self, _: str = "") -> None:
        if self.data is not None:
            self.server.stop()

    def remove(self, _: str = "") -> None:
        self.stop()
        if self.data is not None:
            shutil.rmtree(self.data)
            self.data = None


def main(checkout: Path, arguments: list[str]) -> int:
    sys.path.insert(0, str(checkout))
    adapters = import_module("bench_harness.adapters")
    orchestrator: Any = import_module("bench_harness.orchestrator")
    conf = (checkout / "postgres.conf").read_text()
    settings: dict[str, Any] = dict(re.findall(r"(?m)^(\w+) = '?([^'\n#]+?)'?$", conf))
    postgres = Postgres(settings | {"listen_addresses": "localhost", "port": adapters.PG_PORT})
    orchestrator.start_postgres = postgres.start
    orchestrator.stop_postgres = postgres.remove
    orchestrator._compose_stop_postgres = postgres.stop
    orchestrator._compose_start_postgres = postgres.start
    natively(adapters, "pgqpy-tasks", OURS / "tasks", ["-m", "benchmarks.neutral.tasks"])
    natively(adapters, "pgqpy-events", OURS / "events", ["-m", "benchmarks.neutral.events"])
    for name in PEERS:
        natively(adapters, name, checkout / f"{name}-bench", ["main.py"])
    create = orchestrator.preflight_database

    def preflight(manifest: Any, *, recreate: bool = False) -> None:
        needed = manifest.extensions
        create(replace(manifest, extensions=[]), recreate=recreate)
        if "pgmq" in needed:
            with psycopg.connect(adapters.pg_url(manifest.db_name), autocommit=True) as conn:
                conn.execute(Path(os.environ["PGMQ_SQL"]).read_text().encode())

    orchestrator.preflight_database = preflight
    try:
        return int(orchestrator.main(arguments))
    finally:
        postgres.remove()


def natively(adapters: Any, name: str, directory: Path, program: list[str]) -> None:
    """Register an adapter, or replace its Docker image by a process."""

    def launch(manifest: Any, overrides: dict[str, str]) -> Any:
        env = adapters._base_env(manifest, overrides)
        at = OURS.parents[1] if directory.parent == OURS else directory
        return adapters.LaunchSpec(argv=[sys.executable, *program], env=env, cwd=str(at))

    adapters.ADAPTERS[name] = adapters.AdapterEntry(directory, lambda skip: None, launch)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
