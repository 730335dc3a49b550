"""Pages of the documentation site without a file in docs/: the README and the SQL reference.

A hook of MkDocs (mkdocs.yml). The SQL reference is made of the function headers in sql/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

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
    "Retry": ["retry", "settle_batch", "consumer_failure"],
    "Counting rows": ["row_count"],
    "Dead letters": ["dead_letter"],
    "Ticker": ["ticker"],
    "Maintenance": [
        "rotate",
        "rotate_logs",
        "delayed_move",
        "maint",
        "ticker_failure",
        "foreign_restore",
    ],
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
        return f"## {self.name}\n\n```\n{call}\n```\n\n{self.text}\n"


def functions(sql: str) -> Iterator[Function]:
    """Yield the public functions of a file: those whose header does not say "Internal."."""
    for match in FUNCTION.finditer(sql):
        header = HEADER.search(match["body"])
        if header is None or "Internal." in header["text"]:
            continue
        lines = [line[2:].rstrip() for line in header["text"].splitlines()]
        yield Function(match["name"], match["arguments"], match["returns"] or "", _text(lines[1:]))


def _text(lines: list[str]) -> str:
    """Return a header as Markdown: prose unchanged, columns as code."""
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


def on_config(config: MkDocsConfig) -> None:
    """Put the pages of the SQL reference in the place of ``reference/sql`` in the navigation."""
    for group in config.nav or ():
        for item in group.get("Reference", ()):
            if isinstance(item, dict) and item.get("SQL") == "reference/sql":
                item["SQL"] = [f"reference/sql/{slug(title)}.md" for title in SECTIONS]


def on_files(files: Files, config: MkDocsConfig) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = {"index.md": readme.replace("](docs/", "](")}
    pages |= {f"reference/sql/{slug(title)}.md": page(title) for title in SECTIONS}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace links to programs, which the site lacks, by their names."""
    return re.sub(
        r"\[[^]]+\]\((?:\.\./)?((?:examples|tests)/[^)]*|CONTRIBUTING.md)\)", r"`\1`", markdown
    )


def page(title: str) -> str:
    """Return a page of the SQL reference: the functions of a section."""
    found = [function for stem in SECTIONS[title] for function in functions(source(stem))]
    return "\n\n".join([f"# {title}", *(function.markdown().rstrip() for function in found)]) + "\n"


def source(stem: str) -> str:
    """Return the text of a SQL file; of two with one name, pgq's, unless a schema is given."""
    schema, _, name = stem.rpartition("/")
    found = sorted((ROOT / "sql").glob(f"{schema or '*'}/[ft]*/{name}.sql"))
    if not found:
        raise PluginError(f"tools/site_pages.py names {stem}, and sql/ has no such file")
    return found[0].read_text(encoding="utf-8")


def slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")
