"""``python -m pgqpy_ticker``: the daemon without the rest of the command line."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pgqpy import telemetry
from pgqpy_ticker import Config, ConfigError, run


def main() -> int:
    """Exit codes: 0 after a clean stop, 2 if the configuration cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m pgqpy_ticker", description=__doc__)
    parser.add_argument("--dsn", action="append", default=[], help="may be repeated")
    parser.add_argument("--config", type=Path, help="TOML file, read again on SIGHUP")
    given = parser.parse_args()
    try:
        if os.environ.get("PGQPY_TELEMETRY"):
            telemetry.instrument()
        if given.config is not None:
            run(Config.load(given.config, *given.dsn))
        else:
            run(Config.from_dsns(*given.dsn))
    except (ConfigError, ImportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
