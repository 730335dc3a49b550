"""The SQL of our schemas: where it is, in which order it goes in, how it is kept current.

This module alone knows where ``sql/`` and ``migrations/`` are: inside the
package in a wheel, next to it in a checkout.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    """A directory that a wheel carries inside the package and a checkout beside it."""
    in_wheel = PACKAGE / f"_{name}"
    return in_wheel if in_wheel.is_dir() else PACKAGE.parent / name


SQL_DIR = _shipped("sql")
MIGRATIONS_DIR = _shipped("migrations")

SECTIONS = ("structure", "functions", "grants")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What ``sql/manifest.txt`` lists: the files of each section, in install order."""

    root: Path
    structure: tuple[Path, ...]
    functions: tuple[Path, ...]
    grants: tuple[Path, ...]

    @classmethod
    def load(cls, root: Path = SQL_DIR) -> Manifest:
        """Read the manifest.

        Raises:
            ValueError: a line makes no sense, or names a file that is not there.
        """
        files: dict[str, list[Path]] = {section: [] for section in SECTIONS}
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
        return cls(root, *(tuple(files[section]) for section in SECTIONS))

    def sql(self, *sections: str) -> str:
        """The text of these sections' files, each under its name."""
        parts = [
            f"-- {path.relative_to(self.root).as_posix()}\n\n{path.read_text(encoding='utf-8')}"
            for section in sections
            for path in getattr(self, section)
        ]
        return "\n".join(parts)


def schema_sql() -> str:
    """Everything a fresh installation needs, to be run in one transaction."""
    return Manifest.load().sql(*SECTIONS)
