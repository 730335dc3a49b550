"""The manifest lists all of sql/, and a mistake in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgqpy.schema import SQL_DIR, Manifest
from pgqpy.schema._sources import SECTIONS


def listed() -> list[Path]:
    manifest = Manifest.load()
    return [path for section in SECTIONS for path in getattr(manifest, section)]


def test_every_sql_file_is_installed_exactly_once() -> None:
    assert sorted(listed()) == sorted(SQL_DIR.rglob("*.sql"))


def test_sql_carries_the_name_of_its_file() -> None:
    manifest = Manifest.load()
    for path in listed():
        assert f"-- {path.relative_to(SQL_DIR).as_posix()}\n" in manifest.sql(*SECTIONS)


def test_mistakes_are_named(tmp_path: Path) -> None:
    for manifest, complaint in {
        "pgq/a.sql": "pgq/a.sql stands before any section",
        "[strukture]": r"unknown section \[strukture\]",
        "[structure]\npgq/missing.sql": "there is no file pgq/missing.sql",
    }.items():
        (tmp_path / "manifest.txt").write_text(manifest)
        with pytest.raises(ValueError, match=complaint):
            Manifest.load(tmp_path)


def test_comments_and_blank_lines_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("select 1;")
    (tmp_path / "manifest.txt").write_text("# all\n\n[structure]\na.sql  # the first\n")
    manifest = Manifest.load(tmp_path)
    assert manifest.structure == (tmp_path / "a.sql",)
    assert manifest.functions == ()
