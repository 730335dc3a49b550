"""The revisions of ``migrations/versions``, and their names."""

from __future__ import annotations

from dataclasses import dataclass

from alembic.script import ScriptDirectory
from alembic.util import CommandError

from pgqpy.schema.errors import SchemaError
from pgqpy.schema.manifest import MIGRATIONS_DIR


@dataclass(frozen=True, slots=True)
class Revision:
    """A state of the schema in a release."""

    id: str
    description: str
    is_head: bool


def history() -> list[Revision]:
    """Return all revisions, the oldest first."""
    script = _script()
    return [
        Revision(step.revision, step.doc.partition("\n")[0], step.is_head)
        for step in reversed(list(script.walk_revisions()))
    ]


def resolve(revision: str) -> str | None:
    """Return the full id of a revision; None for ``base``."""
    if revision == "base":
        return None
    try:
        found = _script().get_revision(revision)
    except CommandError as error:
        known = ", ".join(step.id for step in history())
        raise SchemaError(f"there is no revision {revision}", hint=f"there are: {known}") from error
    return str(found.revision)


def path_to(revision: str) -> set[str]:
    """Return the revision and all below it."""
    return {step.revision for step in _script().iterate_revisions(revision, "base")}


def _script() -> ScriptDirectory:
    return ScriptDirectory(str(MIGRATIONS_DIR))
