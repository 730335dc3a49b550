"""`pgqpy demo`: how the command starts it; what it does is tested where it lives."""

from __future__ import annotations

from tests.fixtures.fix_cli import Cli


def test_the_environments_database_is_not_used_by_the_demo(cli: Cli) -> None:
    # It would be the only one that --keep could keep anything in.
    said = cli.fails("demo", "--keep", exit_code=2)
    assert "--dsn" in said


def test_a_server_that_is_not_there_is_an_error_of_one_line(cli: Cli) -> None:
    said = cli.fails("demo", "--no-spark", "--dsn", "postgresql://127.0.0.1:1/nowhere")
    assert "cannot connect to 127.0.0.1:1" in said
