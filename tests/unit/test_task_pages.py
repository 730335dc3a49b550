"""The Python on the pages about tasks imports what it uses."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.pages import blocks

DOCS = Path(__file__).parents[2] / "docs"


def bound(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.alias():
                yield (node.asname or node.name).partition(".")[0]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id


def used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id


@pytest.mark.parametrize("page", sorted(DOCS.glob("tasks*.md")), ids=lambda page: page.stem)
def test_what_a_block_uses_is_of_it_or_of_one_before(page: Path) -> None:
    known = set(dir(builtins))
    for block in blocks(page.read_text()):
        tree = ast.parse(block)
        known |= {*bound(tree)}
        assert {*used(tree)} <= known
