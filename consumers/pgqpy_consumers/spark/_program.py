"""The program that `SparkConsumer.main` makes of a class: its options, log and exit codes."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable

from pgqpy import PgqError

logger = logging.getLogger("pgqpy")


def main(about: str, run: Callable[[argparse.Namespace], None]) -> int:
    """Parse the command line, and run with its options; return the exit code."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--dsn", help="the database; default: PGQPY_DSN, then libpq's environment")
    parser.add_argument("--queue", help="the queue, instead of the class's")
    parser.add_argument("--consumer", help="the name, instead of the class's")
    parser.add_argument("--master", metavar="URL", help="where Spark runs; default: local[*]")
    parser.add_argument("--once", action="store_true", help="process what is there now, and end")
    given = parser.parse_args()
    log_batches()
    try:
        run(given)
    except KeyboardInterrupt:
        return 130
    except PgqError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        logger.error("failed", exc_info=error)
        return 1
    return 0


def log_batches() -> None:
    """Write a line for each batch to standard error."""
    # Logs of other libraries, such as py4j, are of little use.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)
