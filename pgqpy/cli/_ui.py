"""``pgqpy ui``: the console in the browser."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from typing import Any

import click

from pgqpy.cli._base.arguments import TEXT
from pgqpy.cli._base.command import Command, stuck_after_option
from pgqpy.cli._base.database import connect
from pgqpy.cli._base.errors import CliError
from pgqpy.cli._base.output import say


@click.command(cls=Command, role="pgq_reader")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8040,
    show_default=True,
    help="0: any free one.",
)
@click.option("--read-only", is_flag=True, help="Offer no changes, and refuse them.")
@click.option("--name", default="", type=TEXT, help="The installation's name, in tab and header.")
@click.option("--colour", default="grey", type=TEXT, help="The installation's colour: red, blue...")
@click.option(
    "--database",
    "databases",
    multiple=True,
    type=TEXT,
    metavar="NAME=DSN",
    help="One of several databases, in place of --dsn; repeat it.",
)
@click.option(
    "--mask",
    multiple=True,
    type=TEXT,
    metavar="PATH",
    help="Hide these values of payloads, such as $.card.number or $..password.",
)
@stuck_after_option
@click.option("--password", is_flag=True, help="Sign in by role and password of PostgreSQL.")
@click.option("--user-header", metavar="HEADER", help="A proxy names the role in this header.")
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    default=("127.0.0.1", "::1"),
    metavar="ADDRESS",
    help="The proxy's address or network; default: this machine.",
)
def ui(
    dsn: str,
    host: str,
    port: int,
    databases: tuple[str, ...],
    password: bool,
    user_header: str | None,
    **settings: Any,
) -> None:
    """Serve the console: queues, consumers and tasks in the browser.

    It prints a link that signs in once, from this machine, as the role that it connects as. Where
    others are to use it, they sign in by PostgreSQL's password or by a reverse proxy, and each acts
    as a role of their own, of which the console's role must be a member.

    Examples:
      pgqpy ui --dsn postgresql:///shop
      pgqpy ui --name production --colour red --read-only
      pgqpy ui --host 0.0.0.0 --password
      pgqpy ui --database shop=postgresql:///shop --database billing=postgresql:///billing
    """
    try:
        import uvicorn

        import pgqpy.ui
    except ImportError:
        raise CliError("the console is not installed", 'pip install "pgqpy[ui]"') from None
    if password and user_header:
        raise click.UsageError("--password and --user-header exclude each other.")
    token = None if password or user_header else secrets.token_urlsafe(24)
    if token and not _is_loopback(host):
        raise click.UsageError(
            f"On {host} others can reach it: say how they sign in, by --password or --user-header."
        )
    named = dict(each.partition("=")[::2] for each in databases)
    if not all(named.values()):
        raise click.UsageError("--database takes NAME=DSN.")
    try:
        settings |= {"user_header": user_header, "password": password, "token": token}
        console = pgqpy.ui.app(named or dsn, **settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for each in named.values() or [dsn]:
        with connect(each):
            pass  # a database that is not there is an error of the command, not of each page
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise CliError(
            f"cannot listen on {host}, port {port}: {error.strerror}", "--port 0 takes a free one"
        ) from error
    shown = f"[{host}]" if ":" in host else host
    link = f"http://{shown}:{listening.getsockname()[1]}/"
    for path in [f"{each}/" for each in named] or [""]:
        say(f"{link}{path}sign-in?token={token}" if token else f"{link}{path}")
    # The console checks the proxy's headers itself. Requests are not logged, because
    # the link is in them.
    served = uvicorn.Config(
        console,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(served).run(sockets=[listening])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
