"""What people get from the package index works: the wheel alone, without this checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import pgqpy
from pgqpy.schema import MIGRATIONS_DIR, SQL_DIR, history

ROOT = Path(__file__).resolve().parents[2]

PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"

# Run in the empty environment, in a directory where nothing can be imported from.
INSTALL = """
import sys
import pgqpy, pgqpy_consumers, pgqpy_ticker
from pgqpy import schema
for module in (pgqpy, pgqpy_consumers, pgqpy_ticker):
    assert module.__file__.startswith(sys.prefix), module.__file__
assert str(schema.SQL_DIR).startswith(sys.prefix), schema.SQL_DIR
print(schema.migrate(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the backend in this environment: no network."""
    directory = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        *("-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory), str(ROOT)),
    )
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def empty_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel in it and nothing of this checkout.

    The wheel's dependencies are lent by this environment: whoever installs it
    gets them from the index, which the tests must do without.
    """
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    site_packages = Path(run(python, "-c", PURELIB).strip())
    # Added by plain lines: site.addsitedir would read this environment's .pth
    # files too, the one of an editable installation among them.
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "lent.pth").write_text("".join(f"{path}\n" for path in sorted(lent)))
    run(
        *(sys.executable, "-m", "pip", f"--python={python}", "install", "--no-index"),
        *("--no-deps", "--ignore-installed", str(wheel)),
    )
    return python


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_top_level_holds_our_packages_and_nothing_generic(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.partition("/")[0] for name in archive.namelist()}
    assert top == {
        "pgqpy",
        "pgqpy_consumers",
        "pgqpy_ticker",
        f"pgqpy-{pgqpy.__version__}.dist-info",
    }


def test_wheel_carries_the_sql_and_the_migrations(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    for source, target in ((SQL_DIR, "_sql"), (MIGRATIONS_DIR, "_migrations")):
        files = {
            f"pgqpy/{target}/{path.relative_to(source).as_posix()}"
            for path in source.rglob("*")
            if path.suffix in {".sql", ".txt", ".py"}
        }
        assert files
        assert files <= shipped


def test_wheel_is_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    for package in ("pgqpy", "pgqpy_consumers", "pgqpy_ticker"):
        assert f"{package}/py.typed" in shipped


@pytest.mark.any_pg
def test_schema_installs_from_the_wheel_in_an_empty_environment(
    empty_environment: Path, empty_dsn: str, tmp_path: Path
) -> None:
    revision = run(empty_environment, "-I", "-c", INSTALL, empty_dsn, cwd=tmp_path)
    assert revision.strip() == history()[-1].id


def test_command_is_installed(empty_environment: Path, tmp_path: Path) -> None:
    command = empty_environment.with_name("pgqpy")
    assert pgqpy.__version__ in run(command, "--version", cwd=tmp_path)
