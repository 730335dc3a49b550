"""The log of what users have done in the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from pgqpy.errors import PermissionDenied
from pgqpy.ui._database import Visit
from pgqpy.ui._view import Look, View

SHOWN = 200
#: Characters of an argument.
CUT = 200
LOG = "select pgq.log_action(%s, %s, %s)"
MAY_READ = "select has_table_privilege('pgq.action_log', 'select')"
# Every role may write there what it likes, by SQL.
READ = """
select al_time as time, al_role as role, left(al_action, 200) as action, al_count as count,
       case when jsonb_typeof(al_arguments) = 'object' and length(al_arguments::text) < 20000
            then array(select key || '=' || coalesce(value, '') from jsonb_each_text(al_arguments)
                        order by key)
            else array[left(al_arguments::text, 200)] end as arguments
  from pgq.action_log
 where (%(role)s = '' or al_role = %(role)s)
   and position(%(text)s in al_action || ' ' || al_arguments::text) > 0
 order by al_id desc
 limit %(limit)s
"""
#: Fields of forms that say nothing, and those that may hold secrets of users.
UNNAMED = {"csrf", "action", "confirm"}
PAYLOADS = {"data", "patch", "payload", "headers", "extra1", "extra2", "extra3", "extra4"}


def log(visit: Visit, action: str, given: Mapping[str, str], count: int | None) -> None:
    """Note an action in its transaction, as the role that acts."""
    arguments = {
        name: f"({len(value):,} characters)"
        if name.removeprefix("url.") in PAYLOADS
        else value[:CUT].replace("\0", "")
        for name, value in given.items()
        # A setting that was emptied is given, too.
        if (value or given.get(f"before_{name}"))
        and name not in UNNAMED
        and not name.startswith("before_")
    }
    visit.conn.execute(LOG, [action, Jsonb(arguments), count])


def audit(look: Look) -> dict[str, Any]:
    # An error if it does not exist.
    if look.visit.conn.execute(MAY_READ).fetchone() != (True,):
        raise PermissionDenied(
            f"role {look.visit.role} may not read the log of actions",
            hint="members of pgq_admin may",
        )
    given = {name: look.query.get(name, "").replace("\0", "") for name in ("role", "text")}
    found = look.visit.rows(READ, given | {"limit": SHOWN})
    return {"given": given, "found": found, "most": SHOWN}


VIEWS = [View("audit", "Audit", audit, menu="audit", needs="pgq.action_log")]
