"""docs/ticker.md says what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from pgqpy_ticker import Config, Database
from pgqpy_ticker.lead import LOCK
from pgqpy_ticker.metrics import page

PAGE = (Path(__file__).parents[2] / "docs" / "ticker.md").read_text()


def test_the_documented_settings_and_defaults_are_the_real_ones() -> None:
    documented = dict(re.findall(r"^\| `([a-z_]+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    real = {f.name: f.default for f in dataclasses.fields(Database) if f.type == "float"}
    assert {name: float(value) for name, value in documented.items()} == real


def test_the_documented_file_is_accepted(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "ticker.toml"
    file.write_text(example)
    shop, stock = Config.load(file).databases
    assert (shop.name, shop.old_transaction) == ("shop", 300)
    assert (stock.name, stock.old_transaction) == ("stock", 60)


def test_the_documented_metrics_are_the_real_ones() -> None:
    documented = set(re.findall(r"^\| `(pgqpy_[a-z_]+)` \|", PAGE, re.MULTILINE))
    types = re.findall(r"^# TYPE (\w+) ", page([]), re.MULTILINE)
    assert documented == set(types)


def test_the_documented_lock_is_the_real_one() -> None:
    assert f"classid = {LOCK[0]} and objid = {LOCK[1]}" in PAGE
    assert f"({LOCK[0]}, {LOCK[1]})" in PAGE
