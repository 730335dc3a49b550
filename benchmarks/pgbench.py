"""Load of many clients by PostgreSQL's own pgbench."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from pgqpy.embedded import Server


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
