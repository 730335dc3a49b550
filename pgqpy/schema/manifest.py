"""The SQL files, in install order.

This module alone knows where ``sql/`` and ``migrations/`` are: inside the
package in a wheel, beside it in a checkout.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def _shipped(name: str) -> Path:
    in_wheel = PACKAGE / f"_{name}"
    return in_wheel if in_wheel.is_dir() else PACKAGE.parent / name


SQL_DIR = _shipped("sql")
MIGRATIONS_DIR = _shipped("migrations")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that ``sql/manifest.txt`` lists, by section, each in install order.

    Attributes:
        base: roles and schemas. Harmless to repeat, and ends with the owner's
            role set.
        structure: tables, sequences, views: the objects of migrations.
        functions: functions and trigger functions, replaced at each upgrade.
        grants: privileges, repeated at each upgrade.
        end: sets the installer's own role again, and revokes what it needed.
    """

    root: Path
    base: tuple[Path, ...]
    structure: tuple[Path, ...]
    functions: tuple[Path, ...]
    grants: tuple[Path, ...]
    end: tuple[Path, ...]

    @classmethod
    def load(cls, root: Path = SQL_DIR) -> Manifest:
        """Read the manifest: ``[section]`` lines, paths, ``#`` comments.

        Raises:
            ValueError: a line is invalid, or names a file that does not exist.
        """
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


SECTIONS = ("base", "structure", "functions", "grants", "end")
