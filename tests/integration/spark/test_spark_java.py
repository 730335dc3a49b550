"""Without a Java that Spark runs on, the error says what to install."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pgqpy_consumers.spark.session import JavaMissingError, java_version, require_java


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.21" 2026-10-20\nOpenJDK Runtime Environment', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("no Java at all", None),
    ],
)
def test_the_version_is_read_from_what_java_says(output: str, version: int | None) -> None:
    assert java_version(output) == version


def test_no_java_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissingError, match=r"(?s)no Java found.*openjdk-17-jre-headless"):
        require_java()


def test_a_java_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match=r"(?s)is Java 11\n.*openjdk-17-jre-headless"):
        require_java()
