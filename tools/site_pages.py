"""Pages of the documentation site that have no file in docs/: the README and others of the root,
and the SQL reference.

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

from pgqpy.schema import SQL_DIR, Manifest

ROOT = Path(__file__).resolve().parent.parent

# A page holds the public functions of some folders of sql/.
SECTIONS = {
    "Queues": ["pgq/core"],
    "Producing": ["pgq/insert"],
    "Ticker": ["pgq/ticker"],
    "Consumers and batches": ["pgq/consumer"],
    "Delayed events and retries": ["pgq/delayed"],
    "Dead letters": ["pgq/dead_letter"],
    "Consumer groups": ["pgq/groups"],
    "Sharing batches (pgq_coop)": ["pgq_coop"],
    "Done elsewhere (pgq_ext)": ["pgq_ext"],
    "Triggers": ["pgq/triggers"],
    "Capturing tables": ["pgq/capture"],
    "Counting rows": ["pgq/row_count"],
    "Maintenance": ["pgq/maint"],
    "Tasks": ["pgq_task/core"],
    "Workers of tasks": ["pgq_task/worker", "pgq_task/finished", "pgq_task/limits"],
    "Looking at tasks, changing them": ["pgq_task/admin"],
    "Periodic tasks": ["pgq_task/periodic"],
    "Rows as tasks": ["pgq_task/rows"],
}

COMMON = """Errors of all functions: PQ001, or PQ070 for a task queue, if the queue does not exist;
PQ003 for a name that is empty or too long; 42501 for a role that has no right to do this."""
FUNCTION = re.compile(
    r"^create or replace function (?P<name>\w+\.[a-z%][\w$]+)\s*\((?P<arguments>.*?)\)\n"
    r"(?:returns (?P<returns>.*?)\n)?language.*?"
    r"^as (?P<quote>\$\w*\$)\n(?P<body>.*?)(?P=quote);",
    re.MULTILINE | re.DOTALL,
)
# A function that is created several times, under these names.
TEMPLATES = {"pgq.%1$s": ["pgq.sqltriga", "pgq.logutriga", "pgq.jsontriga"]}
HEADER = re.compile(r"(?:--.*\n)+")
HEADING = re.compile(r" (Parameters|Trigger arguments|Returns|Errors|Returns, Errors|Notes):(.*)")


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
    """Yield the public functions of a file: those whose names begin without an underscore."""
    for match in FUNCTION.finditer(sql):
        header = HEADER.match(match["body"])
        if header is None:
            raise PluginError(f"{match['name']} has no header")
        lines = [line[2:].rstrip() for line in header[0].splitlines()]
        returns = re.sub(r"\s+", " ", match["returns"] or "").replace("( ", "(")
        for name in TEMPLATES.get(match["name"], [match["name"]]):
            yield Function(name, match["arguments"], returns, _text(lines))


def _text(lines: list[str]) -> str:
    """Return a header as Markdown: prose unchanged, columns as code."""
    blocks: list[tuple[str, list[str]]] = [("", [])]
    for line in lines:
        heading = HEADING.fullmatch(line)
        if heading:
            blocks.append((heading[1], [heading[2].strip()]))
        else:
            blocks[-1][1].append(line.removeprefix("      " if blocks[-1][0] else " "))
    return "\n\n".join(
        _block(heading, "\n".join(text).strip("\n")) for heading, text in blocks if any(text)
    )


def _block(heading: str, text: str) -> str:
    if not heading:
        return text
    in_columns = any(re.search(r"\S {2,}-? ?\S| - ", line) for line in text.splitlines())
    return f"**{heading}**\n\n```\n{text}\n```" if in_columns else f"**{heading}:** {text}"


def on_config(config: MkDocsConfig) -> None:
    """Put the pages of the SQL reference in the place of ``reference/sql`` in the navigation."""
    for group in config.nav or ():
        for item in group.get("Reference", ()):
            if isinstance(item, dict) and item.get("SQL") == "reference/sql":
                item["SQL"] = [f"reference/sql/{slug(title)}.md" for title in SECTIONS]


# Files of the root that are pages, too.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"\[(?P<text>[^]]+)\]\((?P<path>[^)#]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> None:
    pages = {page: (ROOT / file).read_text(encoding="utf-8") for file, page in ROOT_PAGES.items()}
    pages |= {f"reference/sql/{slug(title)}.md": page(title) for title in SECTIONS}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))


def on_page_markdown(markdown: str, **_: object) -> str:
    return LINK.sub(site_link, markdown)


def site_link(link: re.Match[str]) -> str:
    """Return a link as the site needs it: to a page, or the name of a program instead of a link."""
    path = link["path"].removeprefix("../")
    if path.startswith(("examples/", "tests/")):
        return f"`{path}`"
    page = ROOT_PAGES.get(path, path.removeprefix("docs/"))
    return link[0] if page == path else f"[{link['text']}]({page}{link['anchor'] or ''})"


def page(title: str) -> str:
    """Return a page of the SQL reference: the functions of a section."""
    found = [each for folder in SECTIONS[title] for each in functions(source(folder))]
    return "\n\n".join([f"# {title}", COMMON, *(each.markdown().rstrip() for each in found)]) + "\n"


def source(folder: str) -> str:
    """Return the text of the functions in a folder of sql/, in install order."""
    files = [each for each in Manifest.load().functions if each.is_relative_to(SQL_DIR / folder)]
    if not files:
        raise PluginError(f"tools/site_pages.py names {folder}, and sql/ has no functions there")
    return "\n".join(each.read_text(encoding="utf-8") for each in files)


def slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")
