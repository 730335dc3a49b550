"""The console in a browser, Debian's Chromium: how pages look, and what scripts and keys do."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import psycopg
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

import pgqpy.ui
from pgqpy import Admin, DeadLetterFilter, DeadLetters
from pgqpy.embedded import Server
from pgqpy.tasks import Tasks
from pgqpy.ui import _live, _sign_in
from pgqpy.ui._app import VIEWS
from pgqpy.ui._view import View
from tests.fixtures import fix_client, shop
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_console import OWNER, ROLE, by_header, ending, serving
from tests.fixtures.fix_db import Connection, create_database, drop_database
from tests.fixtures.fix_reference import missing_on_purpose

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, ViewportSize

pytestmark = pytest.mark.slow

#: Milliseconds; the machine is busy with other tests.
PATIENCE = 1000 * fix_client.PATIENCE
AXE = Path(__file__).parents[3] / ".bench" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
EVIL = "<img src=x onerror=hacked=1><script>hacked=1</script>"
WIDE: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    path = shutil.which("chromium")
    if path is None:
        missing_on_purpose("Chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        # Without a sandbox: that of Chromium refuses to work for root.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


class Tabs:
    """Opens pages, and listens to what the browser complains of: that fails the test."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._opened = ExitStack()
        self.complaints: list[str] = []

    def __call__(self, zone: str = "UTC") -> Page:
        context = self._browser.new_context(
            extra_http_headers={ROLE: OWNER}, viewport=WIDE, timezone_id=zone
        )
        self._opened.callback(context.close)
        context.set_default_timeout(PATIENCE)
        self._page = page = context.new_page()
        page.on("console", self._listen)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        return page

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} {message.location}")

    def refused(self, *words: str) -> None:
        """The browser complains of these, and of nothing else; again if a page loads again."""
        self.wait_until(lambda: all(any(w in each for each in self.complaints) for w in words))
        assert all(any(w in each for w in words) for each in self.complaints), self.complaints
        self.complaints.clear()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the browser tells."""

        def heard() -> bool:
            self._page.wait_for_timeout(10)  # it listens only within a call
            return condition()

        wait_until(heard)

    def close(self) -> None:
        self._opened.close()
        assert self.complaints == []


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tabs]:
    tabs = Tabs(browser)
    yield tabs
    tabs.close()


@pytest.fixture(scope="module", autouse=True)
def _quick_updates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_live, "PAUSE", 0.2)
        yield


@dataclass(frozen=True)
class Shop:
    """A console, and the pages of its views."""

    url: str
    pages: dict[str, str]
    conn: Connection

    def page(self, path: str, **query: object) -> str:
        return f"{self.url}/{path}?{urlencode(query)}"


@pytest.fixture(scope="module")
def evil_shop(server: Server) -> Iterator[Shop]:
    """In which all that users write is markup."""
    import httpx

    name = create_database(server)
    dsn = server.dsn_of(name)
    shop.fill(dsn, EVIL)
    with (
        psycopg.connect(dsn, autocommit=True) as conn,
        serving(pgqpy.ui.app(dsn, user=by_header, name=EVIL, colour="red")) as url,
        httpx.Client(base_url=url, headers={ROLE: OWNER}, timeout=60) as client,
    ):
        yield Shop(url, shop.addresses(lambda page: client.get(page).text), conn)
    drop_database(server, name)


@pytest.fixture(scope="module")
def looking(browser: Browser) -> Iterator[Tabs]:
    """A tab with Axe for all views; an init script is not subject to the page's policy."""
    tabs = Tabs(browser)
    yield tabs
    tabs.close()


@pytest.fixture(scope="module")
def look(looking: Tabs) -> Page:
    if not AXE.exists():
        missing_on_purpose("axe-core, which `make test` takes from npm,")
    page = looking()
    page.add_init_script(path=AXE)
    return page


def see(found: Locator, text: str | re.Pattern[str] | None = None) -> None:
    """Wait until it is to be seen, with this text."""
    from playwright.sync_api import expect

    expect(found.first).to_be_visible()
    if text is not None:
        expect(found.first).to_contain_text(text)


def gone(found: Locator) -> None:
    from playwright.sync_api import expect

    expect(found).to_have_count(0)


def connection(page: Page, state: str) -> None:
    """Wait for the state of the page's connection."""
    see(page.locator("#connection"), state)


def faults(page: Page, *rules: str) -> list[tuple[str, str, str]]:
    """What Axe calls serious or critical: rule, element, why."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        (each["id"], node["html"], node["failureSummary"])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.path or "overview")
def test_a_view_is_accessible_fits_a_phone_and_takes_no_text_for_markup(
    view: View, evil_shop: Shop, look: Page, looking: Tabs
) -> None:
    answer = look.goto(evil_shop.url + evil_shop.pages[view.path])
    assert answer is not None
    assert answer.status == 200
    connection(look, "live")
    assert look.locator("h1").count() == 1
    assert EVIL in look.title()
    assert look.locator("main :is(img, script, iframe)").count() == 0
    assert look.evaluate("typeof hacked") == "undefined"
    assert faults(look) == []
    look.emulate_media(color_scheme="dark")
    assert faults(look, "color-contrast") == []
    look.emulate_media(color_scheme="light")
    look.set_viewport_size(PHONE)
    assert faults(look) == []
    assert look.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]
    look.set_viewport_size(WIDE)
    assert looking.complaints == []


def test_a_queue_is_created_changed_and_dropped_by_typing_its_name(
    evil_shop: Shop, tab: Tabs
) -> None:
    page, name = tab(), "parcels & <b>more</b>"
    page.goto(f"{evil_shop.url}/queues")
    page.get_by_label("New queue").fill(name)
    page.get_by_role("button", name="Create").click()
    see(page.locator(".said"), f"created queue {name}")
    see(page.locator("h1"), name)
    page.get_by_label("ticker_max_lag").fill("9 seconds")
    page.get_by_role("button", name="Save").click()
    see(page.locator(".said"), "set ticker_max_lag")
    assert page.get_by_label("ticker_max_lag").input_value() == "00:00:09"
    drop = page.get_by_role("button", name="Drop", exact=True)
    page.get_by_label("type its name").fill("parcels")
    drop.click()
    see(page.get_by_role("alert"), "the name typed is another one")
    tab.refused("409")
    page.get_by_label("type its name").fill(name)
    drop.click()
    see(page.locator(".said"), f"dropped queue {name}")
    see(page.locator("h1"), "Queues")
    gone(page.get_by_text(name, exact=True))


def test_a_failed_task_is_sent_back(evil_shop: Shop, tab: Tabs) -> None:
    tasks = Tasks(evil_shop.conn)
    failed = tasks.list(f"mails{EVIL}.failed")[0]
    page = tab()
    page.goto(evil_shop.page("task", id=failed.id))
    see(page.locator("main"), "no such mailbox")
    page.get_by_role("button", name="Retry").click()
    see(page.locator(".said"), f"sent back task {failed.id}")
    assert [each.queue for each in tasks.list(filter={"ids": [failed.id]})] == [f"mails{EVIL}"]


def test_nothing_is_destroyed_by_one_press(evil_shop: Shop, tab: Tabs) -> None:
    page, found = tab(), 0
    for address in evil_shop.pages.values():
        page.goto(evil_shop.url + address)
        found += page.locator(".sure").count()
        for button in page.locator("button.destroys[name=action]:visible").all():
            gone(button.locator("xpath=ancestor::form[not(.//input[@name='confirm'])]"))
    assert found >= 4


def test_a_dead_letter_is_purged_after_a_question(evil_shop: Shop, tab: Tabs) -> None:
    page, before = tab(), len(DeadLetters(evil_shop.conn).find(DeadLetterFilter()))
    page.goto(evil_shop.page("dead_letter", id=1))
    page.get_by_text("Purge…").press("Enter")
    see(page.locator("details"), "deleted for good")
    page.get_by_role("button", name="Purge").press("Enter")
    see(page.locator(".said"), "purged dead letter 1")
    assert len(DeadLetters(evil_shop.conn).find(DeadLetterFilter())) == before - 1


def test_a_time_that_is_typed_is_in_the_zone_of_the_viewer(evil_shop: Shop, tab: Tabs) -> None:
    page = tab(zone="Asia/Kolkata")
    name = f"orders{EVIL}"
    page.goto(evil_shop.page("events", name=name))
    field = page.get_by_label("Since")
    assert "UTC" not in str(field.get_attribute("placeholder"))
    field.fill("2026-11-21 08:30")
    field.press("Enter")
    page.wait_for_url("**since=2026-11-21T03%3A00%3A00.000Z**")
    assert field.input_value() == "2026-11-21 08:30:00"
    # What is no time goes as it was typed.
    page.goto(evil_shop.page("consumer", queue=name, name=f"billing{EVIL}"))
    page.get_by_label("To", exact=True).fill("first")
    page.get_by_role("button", name="Preview").click()
    see(page.locator("section"), "It reads again")


def test_another_site_can_neither_send_a_form_nor_show_the_console_in_a_frame(
    evil_shop: Shop, tab: Tabs
) -> None:
    page = tab()
    trap = f"""<link rel="icon" href="data:,"><form method="post" action="{evil_shop.url}/queues">
        <input name="action" value="create"><input name="name" value="prize">
        <button>Win</button></form><iframe src="{evil_shop.url}/"></iframe>"""
    # Of the same machine, which is the closest that another site can be.
    with serving(Starlette(routes=[Route("/", lambda _: HTMLResponse(trap))])) as url:
        page.goto(f"{url}/")
        tab.wait_until(lambda: page.frames[1].url == "chrome-error://chromewebdata/")
        tab.refused("frame-ancestors")
        page.get_by_role("button", name="Win").click()
        see(page.locator("h1"), "not from a page of the console")
        tab.refused("403")
        tab.close()
    names = [each.queue_name for each in Admin(evil_shop.conn).get_queue_info()]
    assert "prize" not in names


def test_by_keys_alone(evil_shop: Shop, tab: Tabs) -> None:
    page, admin = tab(), Admin(evil_shop.conn)
    page.goto(f"{evil_shop.url}/queues")
    connection(page, "live")
    focused = "document.activeElement.textContent.trim()"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "To the content"
    menu = [each.title for each in VIEWS if each.menu == each.path]
    seen: list[str] = []
    while not seen or seen[-1] != "Pause":
        page.keyboard.press("Tab")
        seen.append(page.evaluate(focused))
    assert seen[1:-1] == menu
    # A letter that is typed is not a command.
    page.get_by_label("New queue").press("p")
    connection(page, "live")
    row = page.get_by_role("link", name="customers")
    row.focus()
    page.keyboard.press("p")
    connection(page, "paused")
    admin.create_queue("a new one")
    page.reload()
    new = page.get_by_role("link", name="a new one")
    see(new)
    connection(page, "paused")
    admin.drop_queue("a new one")
    row.focus()
    page.keyboard.press("p")
    connection(page, "live")
    gone(new)
    # The focus stays where it was, although the table was replaced.
    assert "customers" in page.evaluate(focused)


def test_mounted_under_a_path_all_works_below_it(server: Server, dsn: str, tab: Tabs) -> None:
    app = pgqpy.ui.app(dsn, user=by_header)
    with ending(app), serving(Starlette(routes=[Mount("/ops/q", app)])) as url:
        page = tab()
        page.goto(f"{url}/ops/q/")
        connection(page, "live")
        page.get_by_role("link", name="Queues", exact=True).click()
        page.get_by_label("New queue").fill("orders")
        page.get_by_role("button", name="Create").click()
        see(page.locator(".said"), "created queue orders")
        connection(page, "live")
        assert page.url == f"{url}/ops/q/queue?name=orders"
        page.get_by_role("link", name="Overview").click()
        see(page.get_by_role("link", name="orders"))
        tab.close()


def test_the_page_says_that_the_database_is_lost_and_goes_on(mortal: Server, tab: Tabs) -> None:
    with serving(pgqpy.ui.app(mortal.dsn, user=by_header)) as url:
        page = tab()
        page.goto(f"{url}/queues")
        connection(page, "live")
        mortal.kill()
        see(page.locator("#problem"), "it goes on by itself")
        connection(page, "no answer")
        other = tab()
        other.goto(f"{url}/queues")
        see(other.locator("main"), "The page loads again by itself.")
        tab.refused("503")
        mortal.restart()
        connection(page, "live")
        connection(other, "live")
        with psycopg.connect(mortal.dsn, autocommit=True) as conn:
            Admin(conn).create_queue("after")
        see(page.get_by_role("link", name="after"))
        assert page.locator("#problem").is_hidden()
        tab.complaints.clear()
        tab.close()


def test_the_page_goes_on_when_the_console_is_started_again(
    dsn: str, conn: Connection, tab: Tabs
) -> None:
    page = tab()
    with serving(pgqpy.ui.app(dsn, user=by_header)) as url:
        page.goto(f"{url}/queues")
        connection(page, "live")
    connection(page, "not connected")
    Admin(conn).create_queue("after")
    with serving(pgqpy.ui.app(dsn, user=by_header), urlsplit(url).port or 0):
        see(page.get_by_role("link", name="after"))
        connection(page, "live")
        tab.complaints.clear()
        tab.close()


def test_a_sign_in_that_ends_is_told(dsn: str, tab: Tabs, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(pgqpy.ui.app(dsn, token="once")) as url:
        page = tab()
        page.goto(f"{url}/sign-in?token=once")
        page.wait_for_url(f"{url}/")
        connection(page, "live")
        later = time.time() + _sign_in.LASTS + 1
        monkeypatch.setattr(time, "time", lambda: later)
        see(page.locator("#problem"), "your sign-in has ended")
        tab.refused("403")
        page.reload()
        see(page.locator("h1"), "You are not signed in")
        tab.refused("403")
        tab.close()


def test_many_queues_consumers_and_dead_letters(dsn: str, conn: Connection, tab: Tabs) -> None:
    conn.execute(
        "select pgq.create_queue('q' || n) from generate_series(1, 200) n;"
        "select pgq.register_consumer('q' || n, 'c' || c)"
        "  from generate_series(1, 200) n, generate_series(1, 5) c;"
        "insert into pgq._dead_letter (dl_queue, dl_consumer, dl_batch, dl_attempts, dl_reason,"
        "       ev_id, ev_time, ev_type, ev_data)"
        " select 'q1', 'c1', 1, 3, 'reason ' || n % 10, n, now(), 'type', '{}'"
        "  from generate_series(1, 1000000) n"
    )
    with serving(pgqpy.ui.app(dsn, user=by_header)) as url:
        page = tab()
        page.goto(f"{url}/")
        figures = page.locator("#live_figures")
        for name, number in (("Queues", 200), ("Consumers", 1_000), ("Dead letters", 1_000_000)):
            see(figures.get_by_text(name, exact=True).locator(".."), f"{number:,}")
        assert page.locator("#live_queues tbody tr").count() == 200
        page.get_by_role("link", name="q1", exact=True).click()
        see(page.locator("h1"), "q1")
        connection(page, "live")
        tab.close()
