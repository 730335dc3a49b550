"""Take a picture of each view of the console, of a shop's database: ``make pictures``.

They go to ``build/pictures``, from where the site takes them; a few, smaller, to ``docs/console``.
"""

from __future__ import annotations

import math
import shutil
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import httpx
import psycopg
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

import pgqpy.ui
from benchmarks._beside import ticker
from pgqpy.doctor._history import History
from pgqpy.embedded import Server
from pgqpy.schema import migrate
from pgqpy.ui import _app
from tests.fixtures import shop
from tests.fixtures.fix_console import serving

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "build" / "pictures"
#: Those that are committed.
CHOSEN = ("overview", "queue", "event")
WIDTH, HEIGHT = 1280, 900
ROLE = "ann"


class Hour(History):
    """As if the pages had been looked at for an hour."""

    is_made = False

    def add(self, now: float, counts: Mapping[tuple[str, ...], float]) -> None:
        if not self.is_made:
            self.is_made = True
            self._series.clear()
            for minute in range(59, 0, -1):
                before = {each: count - since(each, minute) for each, count in counts.items()}
                super().add(now - 60 * minute, before)
        super().add(now, counts)


def since(name: tuple[str, ...], minutes: int) -> float:
    """The events of the last minutes: as many as a wave of its own has."""
    seed = zlib.crc32(name[1].encode())
    wave = (
        math.sin((each + seed) / 9) + math.sin((each * seed) / 5) / 3 for each in range(minutes)
    )
    return sum(60 * (1.4 + each) * (1 + seed % 7) for each in wave)


def take(page: Page, url: str, to: Path) -> None:
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.goto(url)
    expect(page.locator("#connection")).to_have_text("live")
    height = page.locator("main").evaluate("main => main.getBoundingClientRect().bottom")
    page.set_viewport_size({"width": WIDTH, "height": min(math.ceil(height), HEIGHT)})
    page.screenshot(path=to)


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed: apt-get install chromium")
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir(parents=True)
    with Server() as server:
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute("create database shop")
        dsn = server.dsn_of("shop")
        migrate(dsn)
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(f"create role {ROLE} in role pgq_admin".encode())
            shop.fill(dsn)
            [(given_up,)] = conn.execute("select min(ev_id) from pgq.dead_letter").fetchall()
        with patch.object(_app, "History", Hour):
            console = pgqpy.ui.app(dsn, user=lambda _: ROLE, name="shop", colour="blue")
        with ticker(dsn), serving(console) as url, sync_playwright() as playwright:
            pages = shop.addresses(lambda page: httpx.get(url + page, timeout=60).text)
            pages["event"] = f"/event?name=orders&id={given_up}"
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--font-render-hinting=none"]
            )
            page = browser.new_page(timezone_id="Europe/Oslo")
            for path, address in pages.items():
                take(page, url + address, PICTURES / f"{path or 'overview'}.png")
            browser.close()
    for name in CHOSEN:
        picture = Image.open(PICTURES / f"{name}.png").convert("RGB")
        small = picture.quantize(128, dither=Image.Dither.NONE)
        small.save(ROOT / "docs" / "console" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
