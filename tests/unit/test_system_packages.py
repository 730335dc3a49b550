"""The message of `make` about system packages to users that may not install them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgqpy.embedded._programs import process_options, server_account
from tests.fixtures.fix_reference import PACKAGES

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "system-packages"


@pytest.fixture
def environment() -> Iterator[str]:
    """A virtual environment, as far as the script looks."""
    with tempfile.TemporaryDirectory() as name:
        python = Path(name, "bin", "python")
        python.parent.mkdir()
        python.touch(mode=0o755)
        Path(name).chmod(0o755)
        yield name


def ask(purpose: str, environment: str, **variables: str) -> tuple[int, str]:
    """Exit status and output of the script, run by a user that is not root."""
    options = process_options(server_account())
    options["env"] = {"PATH": os.environ["PATH"]} | variables
    done = subprocess.run(
        ["sh", "-s", purpose, "python3", environment],
        # From standard input, since that user may not be allowed into this checkout.
        input=SCRIPT.read_text(),
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert not done.stderr
    return int(done.returncode), str(done.stdout)


@pytest.mark.slow
def test_missing_java_is_named_with_what_is_left_out(environment: str) -> None:
    status, output = ask("test", environment, JAVA_HOME="/nowhere")
    assert status == 0
    assert "As root, on Debian 12: apt-get install openjdk-" in output
    assert "everything that starts Spark" in output


def test_the_virtual_environment_needs_no_java_and_nothing_is_said(environment: str) -> None:
    assert ask("venv", environment, JAVA_HOME="/nowhere") == (0, "")


def test_make_test_installs_each_package_that_a_test_is_skipped_without() -> None:
    script = SCRIPT.read_text()
    assert [package for package in PACKAGES if f"want {package} " not in script] == []
