"""Rules for all commands: help that teaches, errors without tracebacks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import psycopg
import pytest
from click.testing import CliRunner

from pgqpy.cli import main
from pgqpy.cli._app import COMMANDS as LISTED
from pgqpy.cli._app import Root
from pgqpy.cli._base.command import Command
from pgqpy.cli._base.errors import Situation, explain
from pgqpy.errors import ContractNotFound, ContractViolation, PgqError


def commands(group: click.Group, path: str = "pgqpy") -> Iterator[tuple[str, Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        here = f"{path} {name}"
        if isinstance(command, click.Group):
            yield from commands(command, here)
        else:
            assert isinstance(command, Command)
            yield here, command


COMMANDS = dict(commands(main))
#: What stands for values that are no texts.
GIVEN = {"ID": "1", "DSN": "postgresql:///shop"}
DOCS = Path(__file__).resolve().parents[2] / "docs"


def pipeline(words: list[str]) -> Iterator[list[str]]:
    while "|" in words:
        end = words.index("|")
        yield words[:end]
        words = words[end + 1 :]
    yield words


def help_of(path: str) -> str:
    result = CliRunner().invoke(main, [*path.split()[1:], "--help"], prog_name="pgqpy")
    assert result.exit_code == 0
    return result.stdout


def written(page: Path) -> Iterator[str]:
    """The commands of a page, without what the shell does with them."""
    text = page.read_text()
    for block in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("pgqpy "):
                yield line.partition("  #")[0]
    # A name alone is no call.
    yield from re.findall(r"`(pgqpy [a-z][^`]+ [A-Z][^`|>]*)[^`]*`", text.replace("\n", " "))


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_a_command_in_the_docs_has_these_arguments(page: Path) -> None:
    for command in written(page):
        _, *words = takewhile(lambda word: word not in "|>&", shlex.split(command))
        words = [GIVEN.get(word.rstrip("."), word) for word in words]
        path = max((path for path in COMMANDS if f"{command} ".startswith(f"{path} ")), key=len)
        rest = words[len(path.split()) - 1 :]
        said = None
        try:
            COMMANDS[path].make_context(path, rest)
        except click.UsageError as error:
            said = error.format_message()
        # Files are the reader's.
        assert said is None or "does not exist" in said, command


# It reads files only.
WITHOUT_DATABASE = {"pgqpy spark archive-info"}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_explains_itself_and_has_examples_that_work(path: str) -> None:
    command = COMMANDS[path]
    summary, _, paragraph = (command.help or "").partition("\n\n")
    assert summary.endswith(".")
    assert len(paragraph.split()) >= 8
    assert any(path in example for example in command.examples)
    assert path in WITHOUT_DATABASE or (command.role or "").startswith("pgq_")
    text = help_of(path)
    assert "Example" in text
    # An example is there to be copied, so it is not broken.
    wide = [line.strip() for line in text.splitlines() if len(line) > 80]
    assert set(wide) <= set(command.examples)
    for example in command.examples:
        check_example(example)


def check_example(line: str) -> None:
    """It is a command that exists with options that it has."""
    for words in pipeline(shlex.split(line)):
        if words[0] != "pgqpy":
            continue
        _, command, rest = main.resolve_command(click.Context(main), words[1:])
        while isinstance(command, click.Group):
            _, command, rest = command.resolve_command(click.Context(command), rest)
        assert command is not None
        rest = [word for word in rest if word != ">"]
        command.make_context("example", [*rest], resilient_parsing=True, parent=click.Context(main))
        known = {option for param in command.params for option in param.opts}
        known |= {option for param in command.params for option in param.secondary_opts}
        assert {word for word in rest if re.match("--[a-z]", word)} <= known


def test_no_help_in_a_list_of_commands_is_cut_off() -> None:
    groups = ["pgqpy", *{path.rpartition(" ")[0] for path in COMMANDS}]
    for path in groups:
        text = help_of(path)
        assert "..." not in text.partition("Commands:")[2]
        assert all(len(line) <= 80 for line in text.splitlines())


def test_the_list_of_commands_has_their_own_first_lines() -> None:
    for name, (_, first_line, *_) in LISTED.items():
        command = main.get_command(click.Context(main), name)
        assert command is not None
        assert first_line == command.get_short_help_str(limit=100)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ZeroDivisionError("odd\nmore"), 1, "error: unexpected ZeroDivisionError: odd\nhint: "),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
    ],
    ids=["defect", "Ctrl-C", "abort"],
)
def test_a_defect_of_ours_is_called_one_and_an_interrupted_command_ends_quietly(
    error: BaseException, code: int, said: str
) -> None:
    def callback() -> None:
        raise error

    result = CliRunner().invoke(Root(commands={"x": Command("x", callback=callback)}), ["x"])
    assert result.exit_code == code
    assert result.stderr.startswith(said)
    assert bool(result.output) == bool(said)
    assert "Traceback" not in result.output


def test_a_file_problem_is_named_with_the_file() -> None:
    problem = explain(FileNotFoundError(2, "No such file or directory", "x.csv"), Situation())
    assert problem.message == "x.csv: No such file or directory"


def test_what_sqlalchemy_wraps_is_explained_as_what_the_driver_said() -> None:
    class Wrapped(Exception):
        orig = psycopg.errors.DiskFull("could not extend file")

    assert explain(Wrapped("select ..."), Situation()).message == "could not extend file"


def test_the_notes_of_an_error_are_part_of_its_message() -> None:
    error = psycopg.errors.DiskFull("could not extend file")
    error.add_note("100 events were inserted before")
    assert explain(error, Situation()).message == (
        "could not extend file (100 events were inserted before)"
    )


def test_a_mistyped_command_is_told_from_all_commands() -> None:
    """They are imported only when they run."""
    result = CliRunner().invoke(Root("pgqpy"), ["contrct"])
    assert "Did you mean 'contract'?" in result.stderr


@pytest.mark.parametrize("error", [ContractNotFound("none"), ContractViolation("no")])
def test_a_contract_is_looked_at_by_commands(error: PgqError) -> None:
    assert "`pgqpy contract" in (explain(error, Situation()).hint or "")
