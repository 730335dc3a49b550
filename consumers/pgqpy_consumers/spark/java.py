"""The check for Java, which Spark runs on: says what to install before Spark fails unclearly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pgqpy.errors import PgqError

MINIMUM = 17


class JavaMissingError(PgqError):
    """There is no Java, or it is too old; the hint says what to install."""

    default_hint = (
        f"Spark needs Java {MINIMUM} or newer. Debian and Ubuntu:"
        " apt-get install openjdk-17-jre-headless. Elsewhere any JDK that JAVA_HOME or"
        " PATH leads to."
    )


def require_java() -> str:
    """The path of the Java that Spark will run. Raises `JavaMissingError` if there is none."""
    java = _find_java()
    if java is None:
        raise JavaMissingError("no Java found")
    try:
        output = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise JavaMissingError(f"{java} does not run: {error}") from error
    version = java_version(output)
    if version is None or version < MINIMUM:
        raise JavaMissingError(f"{java} is Java {version or 'of unknown version'}")
    return java


def java_version(output: str) -> int | None:
    """The major version in the output of ``java -version``; Java 8 called itself 1.8."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None


def _find_java() -> str | None:
    # Spark's own rule: JAVA_HOME wins, whatever PATH says.
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        return str(java) if java.exists() else None
    return shutil.which("java")
