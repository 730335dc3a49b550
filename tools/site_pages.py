"""Pages of the documentation site that have no file in docs/: the README and others of the root,
the SQL reference, and the pictures of the console.

A hook of MkDocs (mkdocs.yml). The SQL reference is made of the function headers in sql/.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    "Contracts": ["pgq/contract"],
    "Shards": ["pgq/shard"],
    "Ticker": ["pgq/ticker"],
    "Consumers and batches": ["pgq/consumer"],
    "Delayed events and retries": ["pgq/delayed"],
    "Dead letters": ["pgq/dead_letter"],
    "Consumer groups": ["pgq/groups"],
    "Sharing batches (pgq_coop)": ["pgq_coop"],
    "Done elsewhere (pgq_ext)": ["pgq_ext"],
    "Cascaded queues (pgq_node)": ["pgq_node"],
    "Triggers": ["pgq/triggers"],
    "Capturing tables": ["pgq/capture"],
    "Counting rows": ["pgq/row_count"],
    "Maintenance": ["pgq/maint", "pgq/audit"],
    "Tasks": ["pgq_task/core"],
    "Workers of tasks": [
        "pgq_task/worker",
        "pgq_task/finished",
        "pgq_task/flow",
        "pgq_task/limits",
    ],
    "Looking at tasks, changing them": ["pgq_task/admin"],
    "Periodic tasks": ["pgq_task/periodic"],
    "Rows as tasks": ["pgq_task/rows"],
}

COMMON = """Errors of all functions: PQ001, or PQ070 for a task queue, if the queue does not exist;
PQ003 for a name that is empty or too long; 42501 for a role that has no right to do this."""
FUNCTION = re.compile(
    r"^create or replace function (?P<name>\w+\.[a-z]\w+|%1\$s)\s*\((?P<arguments>.*?)\)\n"
    r"(?:returns (?P<returns>.*?)\n)?language.*?"
    r"^as (?P<quote>\$\w*\$)\n(?P<body>.*?)(?P=quote);",
    re.MULTILINE | re.DOTALL,
)
# A function that is created several times, under these names.
TEMPLATES = {"%1$s": ["pgq.sqltriga", "pgq.logutriga", "pgq.jsontriga"]}
HEADER = re.compile(r"(?:--.*\n)+")
COLUMN = re.compile(r"(?P<name>\S.*?) +- (?P<text>.*)")
CALL = re.compile(r"(?P<name>pgq\w*\.[a-z]\w+)\((?P<inputs>\d*)\)")
HEADING = re.compile(r" (Parameters|Trigger arguments|Returns|Errors|Returns, Errors|Notes):(.*)")


@dataclass(frozen=True)
class Function:
    """One documented function; `text` is its header without the comment marks."""

    name: str
    arguments: str
    returns: str
    text: str

    @property
    def inputs(self) -> list[str]:
        return [each for each in self._arguments if not each.startswith("out ")]

    @property
    def _arguments(self) -> list[str]:
        return re.sub(r"\s+", " ", self.arguments).strip().split(", ") if self.arguments else []

    def markdown(self, anchor: str) -> str:
        outputs = [each[4:] for each in self._arguments if each.startswith("out ")]
        result = f"({', '.join(outputs)})" if outputs else self.returns
        if outputs and self.returns.startswith("setof"):
            result = f"setof {result}"
        call = f"{self.name}({', '.join(self.inputs)})"
        wrapped = textwrap.wrap(f"{call} -> {result}", 92, subsequent_indent="    ")
        code = "\n".join(wrapped)
        return f"## {self.name} {{ #{anchor} }}\n\n```sql\n{code}\n```\n\n{self.text}\n"


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
    """Return a header as Markdown: prose unchanged, columns as a list."""
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
    items: list[str] = []
    for line in text.splitlines():
        if item := COLUMN.match(line):
            items.append(f"- `{item['name']}`: {item['text']}")
        elif items and line.startswith(" "):
            items[-1] += f" {line.strip()}"
        else:
            items.append(f"\n{line}" if items and items[-1].startswith("- ") else line)
    if any(item.startswith("- ") for item in items):
        return f"**{heading}**\n\n" + "\n".join(items)
    return f"**{heading}:** {text}"


def on_config(config: MkDocsConfig) -> None:
    """Put the pages of the SQL reference in the place of ``reference/sql`` in the navigation."""
    for group in config.nav or ():
        for item in group.get("Reference", ()):
            if isinstance(item, dict) and item.get("SQL") == "reference/sql":
                item["SQL"] = [{title: f"reference/sql/{slug(title)}.md"} for title in SECTIONS]


#: Where tools/pictures.py puts them.
PICTURES = ROOT / "build" / "pictures"
# Files of the root that are pages, too.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"\[(?P<text>[^]]+)\]\((?P<path>[^)#]+)(?P<anchor>#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> None:
    pages = {page: (ROOT / file).read_text(encoding="utf-8") for file, page in ROOT_PAGES.items()}
    pages |= sql_pages()
    pictures = sorted(PICTURES.glob("*.png"))
    pages["console-views.md"] = views_page(pictures)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for each in pictures:
        files.append(File.generated(config, f"pictures/{each.name}", abs_src_path=str(each)))


def views_page(pictures: list[Path]) -> str:
    """Return the page with a picture of each view of the console, if `make pictures` was run."""
    shown = [f"## {each.stem}\n\n![The view](pictures/{each.name})" for each in pictures]
    how = "`make pictures`, before `make docs`, takes a picture of each view, of a shop's database."
    return "\n\n".join(["# Views of the console", *(shown or [how])])


def on_page_markdown(markdown: str, **_: object) -> str:
    return LINK.sub(site_link, markdown)


def site_link(link: re.Match[str]) -> str:
    """Return a link as the site needs it: to a page, or the name of a program instead of a link."""
    path = link["path"].removeprefix("../")
    if path.startswith(("examples/", "tests/")):
        return f"`{path}`"
    page = ROOT_PAGES.get(path, path.removeprefix("docs/"))
    return link[0] if page == path else f"[{link['text']}]({page}{link['anchor'] or ''})"


def sql_pages() -> dict[str, str]:
    """Return the pages of the SQL reference, a link at each mention of a function."""
    seen: Counter[str] = Counter()
    anchors: dict[str, str] = {}
    sections: dict[str, list[tuple[str, Function]]] = {}
    for title, folders in SECTIONS.items():
        file = f"{slug(title)}.md"
        for each in (each for folder in folders for each in functions(source(folder))):
            seen[each.name] += 1
            anchor = each.name if seen[each.name] == 1 else f"{each.name}-{seen[each.name]}"
            anchors[f"{each.name}({len(each.inputs)})"] = f"{file}#{anchor}"
            anchors.setdefault(f"{each.name}()", f"{file}#{anchor}")
            sections.setdefault(title, []).append((anchor, each))

    def linked(mention: re.Match[str]) -> str:
        to = anchors.get(mention[0])
        return f"[{mention['name']}()]({to})" if to else mention[0]

    return {
        f"reference/sql/{slug(title)}.md": f"# SQL: {title}\n\n{COMMON}\n\n"
        + "\n".join(
            replace(each, text=CALL.sub(linked, each.text)).markdown(anchor)
            for anchor, each in found
        )
        for title, found in sections.items()
    }


def source(folder: str) -> str:
    """Return the text of the functions in a folder of sql/, in install order."""
    manifest = Manifest.load()
    listed = [*manifest.functions, *manifest.node]
    files = [each for each in listed if each.is_relative_to(SQL_DIR / folder)]
    if not files:
        raise PluginError(f"tools/site_pages.py names {folder}, and sql/ has no functions there")
    return "\n".join(each.read_text(encoding="utf-8") for each in files)


def slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")
