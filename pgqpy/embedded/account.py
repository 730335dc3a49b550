"""The server's user. PostgreSQL refuses root, and root is common in containers."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

from pgqpy.embedded.errors import EmbeddedError

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
