"""The sources of the schema: the SQL files in install order, and the revisions of migrations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pgqpy.errors import PgqError

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory


class SchemaError(PgqError):
    """The schema cannot be installed, changed or removed; the hint says what to do."""


PACKAGE = Path(__file__).resolve().parent.parent


def _shipped(name: str) -> Path:
    in_wheel = PACKAGE / f"_{name}"
    return in_wheel if in_wheel.is_dir() else PACKAGE.parent / name


SQL_DIR = _shipped("sql")
MIGRATIONS_DIR = _shipped("migrations")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that ``sql/manifest.txt`` lists, by section, each in install order."""

    root: Path
    base: tuple[Path, ...]
    """Roles and schemas. Harmless to repeat, and ends with the owner's role set."""
    structure: tuple[Path, ...]
    """Tables, sequences, views: the objects of migrations."""
    functions: tuple[Path, ...]
    """Functions and trigger functions, replaced at each upgrade."""
    grants: tuple[Path, ...]
    """Privileges, repeated at each upgrade."""
    node: tuple[Path, ...]
    """The optional schema pgq_node: installs or upgrades it."""
    end: tuple[Path, ...]
    """Sets the installer's own role again, and revokes what it needed."""

    @classmethod
    def load(cls, root: Path = SQL_DIR) -> Manifest:
        """Read the manifest: ``[section]`` lines, paths, ``#`` comments. Raises ValueError."""
        files: dict[str, list[Path]] = {name: [] for name in SECTIONS}
        section = None
        for line in (root / "manifest.txt").read_text(encoding="utf-8").splitlines():
            entry = line.partition("#")[0].strip()
            if not entry:
                continue
            if entry.startswith("["):
                section = entry.strip("[]")
                if section not in files:
                    raise ValueError(f"manifest.txt: unknown section {entry}")
            elif section is None:
                raise ValueError(f"manifest.txt: {entry} stands before any section")
            elif not (root / entry).is_file():
                raise ValueError(f"manifest.txt: there is no file {entry}")
            else:
                files[section].append(root / entry)
        return cls(root, *(tuple(files[name]) for name in SECTIONS))

    def sql(self, *sections: str) -> str:
        """Return the text of these sections' files, each under its name."""
        return "\n".join(
            f"-- {path.relative_to(self.root).as_posix()}\n\n{path.read_text(encoding='utf-8')}"
            for section in sections
            for path in getattr(self, section)
        )


SECTIONS = ("base", "structure", "functions", "grants", "node", "end")


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
    from alembic.util import CommandError

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
    # Alembic and SQLAlchemy take long to import, and most migrations have nothing to do.
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(MIGRATIONS_DIR))
