"""Pages: templates, in which all text is escaped, and their fragments that are kept up to date.

A template's blocks named ``live_...`` are its fragments: each is in an element with that id, has no
form in it (a form belongs to one viewer), and is the same for all viewers of a role.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from pgqpy._runtime.words import ago, brief, duration, plural, rate, size
from pgqpy.ui._chart import sparkline, timeline
from pgqpy.ui._mask import text_masked

Values = Mapping[str, Any]
NONE = "–"
#: Begins or ends a piece of text with a direction of its own.
TURN = re.compile("[\u202a-\u202e\u2066-\u2069]")
SENT_BACK = re.compile(r'( value="[^"]*"|<textarea\b.*?</textarea>)', re.DOTALL)


def _known(write: Callable[[Any], str]) -> Callable[[Any], str]:
    """Write a value, or that it is not known."""
    return lambda value: NONE if value is None else write(value)


def _when(value: datetime | None) -> str | Markup:
    """Write a time, which the script shows in the viewer's zone."""
    if value is None:
        return NONE
    return Markup('<time datetime="{}">{}</time>').format(
        value.isoformat(timespec="milliseconds"), f"{value:%Y-%m-%d %H:%M:%S %Z}"
    )


@pass_context
def _payload(context: Context, text: str | None, indent: int | None = None) -> str:
    return text_masked(text, context["masks"], indent)


@pass_context
def _typed(context: Context, action: str, name: str, otherwise: object = "") -> object:
    """Return what a form's field held when it was refused, or else what it holds at first."""
    refused = context["refused"]
    return refused.get(name, otherwise) if refused.get("action") == action else otherwise


@lru_cache(4096, typed=True)
def _query(**values: str | int | None) -> str:
    return urlencode({name: value for name, value in values.items() if value is not None})


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("pgqpy.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": _known("{:,}".format),
        "rate": _known(rate),
        "brief": _known(brief),
        "exactly": _known(duration),
        "ago": ago,
        "size": _known(size),
        "when": _when,
        "payload": _payload,
    }
    made.globals |= {
        "plural": plural,
        "query": _query,
        "sparkline": sparkline,
        "timeline": timeline,
        "typed": _typed,
    }
    made.globals["ui"] = made.get_template("macros.html").module
    return made


_TEMPLATES = _environment()


@cache
def _template(template: str) -> Template:
    if template.endswith(".html"):
        return _TEMPLATES.get_template(template)
    return _TEMPLATES.from_string(template)


def page(template: str, values: Values) -> str:
    """Write a whole page. ``template`` is a file of the console's, or a text."""
    return _without_turns(_template(template).render(values))


def fragments(template: str, values: Values) -> dict[str, str]:
    """Write the fragments of a page, by id."""
    found = _template(template)
    context = found.new_context(dict(values))
    return {
        name: _without_turns("".join(block(context)))
        for name, block in found.blocks.items()
        if name.startswith("live_")
    }


def _without_turns(html: str) -> str:
    """Show characters that turn the text after them around by their codes, but where the browser
    sends a value back."""
    if not TURN.search(html):
        return html
    parts = SENT_BACK.split(html)
    parts[::2] = [TURN.sub(lambda it: f"\\u{ord(it[0]):04x}", each) for each in parts[::2]]
    return "".join(parts)
