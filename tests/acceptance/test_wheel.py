"""The package from the index works: the wheel alone, without this checkout."""

from __future__ import annotations

import email
import importlib.metadata
import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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

    The wheel's dependencies are lent by this environment: an installation
    gets them from the index, which the tests must not use.
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


def test_the_wheel_holds_our_packages_with_their_types_the_sql_and_the_migrations(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    packages = {"pgqpy", "pgqpy_consumers", "pgqpy_ticker"}
    top = {name.partition("/")[0] for name in shipped}
    assert top == packages | {f"pgqpy-{pgqpy.__version__}.dist-info"}
    assert {f"{package}/py.typed" for package in packages} <= shipped
    for source, target in ((SQL_DIR, "_sql"), (MIGRATIONS_DIR, "_migrations")):
        files = {
            f"pgqpy/{target}/{path.relative_to(source).as_posix()}"
            for path in source.rglob("*")
            if path.suffix in {".sql", ".txt", ".py"}
        }
        assert files
        assert files <= shipped


def test_schema_installs_from_the_wheel_in_an_empty_environment(
    empty_environment: Path, empty_dsn: str, tmp_path: Path
) -> None:
    revision = run(empty_environment, "-I", "-c", INSTALL, empty_dsn, cwd=tmp_path)
    assert revision.strip() == history()[-1].id


def test_command_is_installed(empty_environment: Path, tmp_path: Path) -> None:
    command = empty_environment.with_name("pgqpy")
    assert pgqpy.__version__ in run(command, "--version", cwd=tmp_path)


#: What needs an extra, with all modules below it. Everything else must do without any.
PROMISED = {
    "pgqpy.embedded": "embedded",
    "pgqpy.telemetry._otel": "otel",
    "pgqpy_ticker.otel": "otel",
    **dict.fromkeys(
        [
            "pgqpy.tasks._jobs.app",
            "pgqpy.tasks._jobs.flow",
            "pgqpy.tasks._jobs.runner",
            "pgqpy.tasks._jobs.worker",
            "pgqpy.tasks._jobs.worker_async",
            "pgqpy.tasks._jobs.heartbeat",
            "pgqpy.tasks._jobs.job",
            "pgqpy.tasks._jobs.payload",
            "pgqpy.tasks._jobs.periodic",
        ],
        "jobs",
    ),
    "pgqpy_consumers.spark": "spark",
    "pgqpy_consumers.spark._archive_avro": "contracts",
    "pgqpy_consumers.webhook": "webhook",
    "pgqpy.ui": "ui",
}

IMPORT_ALL = """
import importlib, json, pkgutil, sys
sys.path += sys.argv[1:3]
failed = {}
def walk(names):
    for name in names:
        # The plugin is loaded by a program that brings what it needs.
        if name.endswith(".__main__") or name == "pgqpy.pytest_plugin":
            continue
        try:
            module = importlib.import_module(name)
            # Modules imported on first use are promised as well.
            for each in getattr(module, "__all__", ()):
                getattr(module, each)
        except ImportError as error:
            failed[name] = repr(error)
        else:
            below = pkgutil.iter_modules(getattr(module, "__path__", []))
            walk(f"{name}.{found.name}" for found in below)
walk(sys.argv[3:])
print(json.dumps(failed))
"""


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the wheel installs."""
    directory = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return directory


def wheel_metadata(unpacked: Path) -> Message:
    (path,) = unpacked.glob("*.dist-info/METADATA")
    return email.message_from_string(path.read_text(encoding="utf-8"))


def needed_by(metadata: Message, extra: str) -> tuple[set[str], set[str]]:
    """The distributions that pip installs for ``pgqpy[extra]``, and the extras of ours in it."""
    todo, seen = [("pgqpy", ""), ("pgqpy", extra)], set[tuple[str, str]]()
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        ours = name == "pgqpy"
        lines = metadata.get_all("Requires-Dist") if ours else importlib.metadata.requires(name)
        for requirement in map(Requirement, lines or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                required = canonicalize_name(requirement.name)
                todo += [(required, each) for each in ("", *requirement.extras)]
    names = {name for name, _ in seen}
    return names - {"pgqpy"}, {wanted for name, wanted in seen if name == "pgqpy"}


def lend(distributions: set[str], directory: Path) -> None:
    """Make these importable from a directory."""
    for name in distributions:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (directory / top).exists():
                (directory / top).symlink_to(Path(str(distribution.locate_file(top))))


def test_extras_are_those_whose_modules_are_known_and_all_has_them(
    unpacked: Path,
) -> None:
    declared = wheel_metadata(unpacked).get_all("Provides-Extra") or []
    bundles = {"all", "test", "bench", "dev", "demo"}
    assert set(declared) - bundles - {"docs"} == set(PROMISED.values())
    metadata = wheel_metadata(unpacked)
    everything, _ = needed_by(metadata, "all")
    for extra in set(PROMISED.values()):
        assert everything >= needed_by(metadata, extra)[0]


@pytest.mark.parametrize("extra", ["", *sorted({*PROMISED.values()})])
def test_all_that_an_extra_promises_can_be_imported_with_it_alone(
    unpacked: Path, tmp_path: Path, extra: str
) -> None:
    distributions, extras = needed_by(wheel_metadata(unpacked), extra)
    lend(distributions, tmp_path)
    # Without site nothing is found but the standard library, and what is lent.
    alone = (sys.executable, "-I", "-S", "-c", IMPORT_ALL)
    # The rest can do without any extra.
    promised = [name for name, other in PROMISED.items() if other in extras]
    names = promised if extra else ["pgqpy", "pgqpy_ticker", "pgqpy_consumers"]
    failed = json.loads(run(*alone, unpacked, tmp_path, *names, cwd=tmp_path))
    promised_by_others = {name for name, other in PROMISED.items() if other not in extras}
    assert {
        name: error
        for name, error in failed.items()
        if not any(f"{name}.".startswith(f"{other}.") for other in promised_by_others)
    } == {}
