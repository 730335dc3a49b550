"""The console in the browser: `pgqpy ui`, and `app` to mount in an application.

``app(dsn)`` is an ASGI application::

    application.mount("/queues", pgqpy.ui.app(dsn, user=lambda request: request.user.role))

Each request runs as the PostgreSQL role of its user. See docs/console.md.
"""

try:
    from pgqpy.ui._app import COLOURS, app
    from pgqpy.ui._view import Done, Look, View
except ModuleNotFoundError as error:
    if error.name not in {"jinja2", "markupsafe", "starlette"}:
        raise
    raise ImportError('the console needs: pip install "pgqpy[ui]"') from error

__all__ = ["COLOURS", "Done", "Look", "View", "app"]
