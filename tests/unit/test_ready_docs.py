"""The documentation of the consumers that are ready to run says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pgqpy.cli import main
from pgqpy_consumers.ready import READY, ready
from pgqpy_consumers.settings import load

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "ready-to-run.md").read_text()


BLOCKS = [
    block
    for page in sorted(DOCS.glob("*.md"))
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize("name", READY)
def test_the_example_is_a_configuration_and_in_the_documentation_as_it_is_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CliRunner().invoke(main, ["run", name, "--example"], prog_name="pgqpy")
    assert result.exit_code == 0, result.output
    settings = result.stdout.partition("\n\n")[2]
    assert any(block.endswith(settings) for block in BLOCKS), f"not in docs/: {settings}"
    file = tmp_path / "example.toml"
    file.write_text(result.stdout)
    for variable in re.findall(r"\$\{(\w+)\}", result.stdout):
        # Also good for what a secret of a webhook has to be.
        monkeypatch.setenv(variable, "of+the+environment+0123456789+++")
    assert load(ready(name).Config, file)


def test_every_consumer_is_in_the_list_with_a_page_that_exists() -> None:
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(([^)]*)\)", PAGE, re.MULTILINE))
    assert set(rows) == set(READY)
    for link in rows.values():
        page, _, anchor = link.partition("#")
        assert (DOCS / page).is_file() if page else f"\n## {anchor}\n" in PAGE


def test_the_subclass_in_the_documentation_is_the_example() -> None:
    program = (DOCS.parent / "examples" / "order_mails.py").read_text()
    assert program[program.index("import pgqpy\n") :] in PAGE
