"""Write docs/sql-reference.md from the headers of the functions in sql/.

python tools/sql_reference.py           writes it
python tools/sql_reference.py --check   fails if it is not up to date
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "sql-reference.md"

INTRODUCTION = """\
Generated from the headers of the functions by `tools/sql_reference.py`. PUBLIC may call the info
functions; the role `pgq_reader` consumes, `pgq_writer` produces, `pgq_admin` does both and
administers. `sql/pgq/grants.sql` has the list."""

# A section is a family of functions: a file of sql/, or several.
SECTIONS = {
    "Queues": ["queue", "queue_info"],
    "Producing": ["insert_event", "insert_events", "write_target", "stream_writer", "staging"],
    "Delayed events and keys": ["delayed", "delayed_insert", "idempotency"],
    "Capturing tables": ["capture_table", "release_table", "capture_info", "capture_maint"],
    "Triggers": ["sqltriga", "logutriga", "jsontriga"],
    "Registering consumers": ["consumer", "consumer_start"],
    "Batches": ["next_batch", "batch", "batch_sql"],
    "Sharing batches (pgq_coop)": [
        "pgq_coop/member",
        "pgq_coop/next_batch",
        "pgq_coop/finish_batch",
        "pgq_coop/version",
    ],
    "The work queue (pgq_task)": [
        "pgq_task/queue",
        "pgq_task/permission",
        "pgq_task/push",
        "pgq_task/claim",
        "pgq_task/finish",
        "pgq_task/finish_and_claim",
        "pgq_task/fail",
        "pgq_task/release",
        "pgq_task/held",
        "pgq_task/pop",
        "pgq_task/modify",
        "pgq_task/change",
        "pgq_task/insert",
        "pgq_task/wake",
        "pgq_task/sweep",
        "pgq_task/position",
        "pgq_task/info",
        "pgq_task/list",
        "pgq_task/bulk",
        "pgq_task/search",
        "pgq_task/finished",
        "pgq_task/replay",
        "pgq_task/statistics",
        "pgq_task/limit",
        "pgq_task/result",
        "pgq_task/periodic",
        "pgq_task/cancel",
        "pgq_task/progress",
        "pgq_task/table_columns",
        "pgq_task/table_notify",
        "pgq_task/raise",
    ],
    "Consumer groups": [
        "group",
        "group_key",
        "group_member",
        "group_batch",
        "group_park",
        "group_resize",
        "group_info",
    ],
    "Retry": ["retry", "settle_batch"],
    "Counting rows": ["row_count"],
    "Dead letters": ["dead_letter"],
    "Ticker": ["ticker"],
    "Maintenance": ["rotate", "rotate_logs", "delayed_move", "maint", "foreign_restore"],
    "Done elsewhere (pgq_ext)": [
        "remote_batch",
        "remote_event",
        "track_tick",
        "track_batch",
        "track_event",
    ],
    "Helpers": ["names_and_sequences"],
}

FUNCTION = re.compile(
    r"^create or replace function (?P<name>[\w.]+)\s*\((?P<arguments>.*?)\)\n"
    r"(?:returns (?P<returns>[^\n]+)\n)?language.*?"
    r"^as (?P<quote>\$\w*\$)\n(?P<body>.*?)(?P=quote);",
    re.MULTILINE | re.DOTALL,
)
HEADER = re.compile(r"^-- -+\n(?P<text>(?:--.*\n)+?)-- -+\n", re.MULTILINE)


@dataclass(frozen=True)
class Function:
    """One documented function; `text` is its header without the comment marks."""

    name: str
    arguments: str
    returns: str
    text: str

    def markdown(self) -> str:
        arguments = re.sub(r"\s+", " ", self.arguments).strip()
        inputs = [a.strip() for a in arguments.split(", ") if a and not a.startswith("out ")]
        outputs = [a.strip()[4:] for a in arguments.split(", ") if a.startswith("out ")]
        result = f"({', '.join(outputs)})" if outputs else self.returns
        if outputs and self.returns.startswith("setof"):
            result = f"setof {result}"
        call = f"{self.name}({', '.join(inputs)})\n    -> {result}"
        return f"### {self.name}\n\n```\n{call}\n```\n\n{self.text}\n"


def functions(sql: str) -> Iterator[Function]:
    """The functions of one file that are for users: not those whose header says "Internal."."""
    for match in FUNCTION.finditer(sql):
        header = HEADER.search(match["body"])
        if header is None or "Internal." in header["text"]:
            continue
        lines = [line[2:].rstrip() for line in header["text"].splitlines()]
        yield Function(match["name"], match["arguments"], match["returns"] or "", _text(lines[1:]))


def _text(lines: list[str]) -> str:
    """A header as Markdown: prose as it is, what stands in columns as code."""
    blocks: list[tuple[str, list[str]]] = [("", [])]
    for line in lines:
        heading = re.fullmatch(r" ([A-Z][\w, ]*):", line)
        if heading:
            blocks.append((heading[1], []))
        else:
            blocks[-1][1].append(line.removeprefix("      "))
    return "\n\n".join(
        _block(heading, "\n".join(text).strip("\n")) for heading, text in blocks if any(text)
    )


def _block(heading: str, text: str) -> str:
    if not heading:
        return text
    in_columns = any(re.search(r"\S {2,}-? ?\S| - ", line) for line in text.splitlines())
    return f"**{heading}**\n\n" + (f"```\n{text}\n```" if in_columns else text)


def page() -> str:
    # Of files with the same name that of pgq is meant, unless the schema is given.
    paths = sorted((ROOT / "sql").rglob("*.sql"), reverse=True)
    files = {path.stem: path for path in paths}
    files |= {f"{path.parts[-3]}/{path.stem}": path for path in paths}
    parts = ["# SQL reference", INTRODUCTION]
    for title, stems in SECTIONS.items():
        found = [
            function
            for stem in stems
            if stem in files
            for function in functions(files[stem].read_text())
        ]
        if found:
            parts.append(f"## {title}")
            parts.extend(function.markdown().rstrip() for function in found)
    return "\n\n".join(parts) + "\n"


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != text:
            print(f"{PAGE.relative_to(ROOT)} is not up to date: run python tools/sql_reference.py")
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
