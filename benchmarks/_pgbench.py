"""pgbench: by itself, as a contestant, and as producers that run beside a block."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgqpy.embedded import Server

PREPARED = ("--no-vacuum", "--protocol=prepared")


def pgbench(server: Server, dsn: str, *arguments: str, script: str | None = None) -> str:
    """Run pgbench to its end, with a script for ``--file=-``; returns what it says."""
    done = subprocess.run(
        [server.bin_dir / "pgbench", *arguments, dsn],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"pgbench: {done.stderr}")
    return done.stdout


def rate_of(said: str) -> float:
    """The transactions a second that pgbench tells; connecting does not count."""
    found = re.search(r"tps = ([\d.]+) \(without", said)
    assert found is not None, said
    return float(found[1])


def contestant(
    server: Server, dsn: str, script: str, *, clients: int, transactions: int
) -> Callable[[], float]:
    """A contestant: transactions by prepared statements."""
    each = f"--transactions={transactions // clients}"
    options = *PREPARED, "--file=-", f"--client={clients}", f"--jobs={min(clients, 2)}", each
    return lambda: transactions / rate_of(pgbench(server, dsn, *options, script=script))


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
            *(str(server.bin_dir / "pgbench"), *PREPARED),
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
