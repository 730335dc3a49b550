"""Write the SQL files that need no Python to install: pgq.sql, pgq_node.sql and the extensions'."""

import sys
from pathlib import Path

from pgqpy.schema import extension_files, single_file


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    files = {"pgq.sql": single_file(), "pgq_node.sql": single_file(node=True)} | extension_files()
    for name, content in files.items():
        (directory / name).write_text(content, encoding="utf-8")
        print(f"wrote {directory / name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
