"""Producers: pgbench runs one statement as a transaction while a block is run."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgqpy.embedded import Server


@dataclass(slots=True)
class Production:
    """The result of the producers; known when they have ended."""

    slowest: float = 0.0
    """The seconds of the longest transaction, from sending it."""


@contextmanager
def producers(
    server: Server, dsn: str, script: str, *, clients: int = 1, rate: float | None = None
) -> Iterator[Production]:
    """Run ``rate`` transactions a second in all, or as many as possible."""
    done = Production()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "script.sql")
        file.write_text(script)
        command = [
            *(str(server.bin_dir / "pgbench"), "--no-vacuum", "--protocol=prepared"),
            *(f"--file={file}", f"--client={clients}", "--jobs=1", "--time=1000000"),
            *(["--log", f"--log-prefix={directory}/log", f"--rate={rate}"] if rate else []),
        ]
        with subprocess.Popen(
            [*command, dsn], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield done
            finally:
                ended = process.poll()
                process.terminate()
                _, told = process.communicate()
        if ended is not None:
            raise RuntimeError(f"pgbench: {told}")
        for log in Path(directory).glob("log*"):
            done.slowest = max(done.slowest, slowest(log))


def slowest(log: Path) -> float:
    """The longest transaction in a log. A line has client, number, microseconds since it was due,
    script, the time (two numbers) and the delay of sending."""
    # Without the last line, which may be incomplete.
    lines = [line.split() for line in log.read_text().splitlines()[:-1]]
    return max((int(took) - int(late) for _, _, took, *_, late in lines), default=0) / 1e6


def contestant(
    server: Server, dsn: str, script: str, *, clients: int, transactions: int
) -> Callable[[], float]:
    """A contestant: transactions by prepared statements; connecting does not count."""

    def run() -> float:
        each = transactions // clients
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(script)
            file.flush()
            done = subprocess.run(
                [
                    *(str(server.bin_dir / "pgbench"), "--no-vacuum", "--protocol=prepared"),
                    *(f"--file={Path(file.name)}", f"--client={clients}"),
                    *(f"--jobs={min(clients, 2)}", f"--transactions={each}", dsn),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
        rate = re.search(r"tps = ([\d.]+) \(without", done.stdout)
        if done.returncode or rate is None:
            raise RuntimeError(f"pgbench: {done.stderr or done.stdout}")
        return transactions / float(rate[1])

    return run
