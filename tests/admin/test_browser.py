"""The admin in a real browser: what an operator does, in light and dark.

``OUTBOX_SCREENSHOTS=docs/images`` refreshes the pictures of the documentation; run it with
``--on postgresql --on chromium``, so that a session lock and a foreign lock are to be seen, and
then keep the light ones and give them a palette, as any optimiser of PNG files does.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from playwright.sync_api import expect, sync_playwright

from django_outbox_lock import locks
from django_outbox_lock.models import Lock, OutboxMessage
from tests.admin import scene
from tests.admin.conftest import url_of
from tests.factories import OutboxMessageFactory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer

    from tests.servers import Server

pytestmark = [pytest.mark.server("chromium"), pytest.mark.django_db(transaction=True)]

PASSWORD = "correct horse"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
TOO_WIDE = """[...document.querySelectorAll("html, .results")]
    .filter(place => place.scrollWidth > place.clientWidth).map(place => place.className)"""


@pytest.fixture(scope="module", autouse=True)
def loop_beside_the_orm() -> Iterator[None]:
    """Playwright keeps an event loop in the test's thread, where Django would refuse queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


@pytest.fixture
def page(live_server: LiveServer, running_server: Callable[[str], Server]) -> Iterator[Page]:
    """A page of a superuser who has logged in; fails for errors on its console."""
    chromium: Any = running_server("chromium")
    User.objects.create_superuser("operator", password=PASSWORD)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.path, args=ARGUMENTS)
        page = browser.new_page(base_url=live_server.url, viewport={"width": 1366, "height": 768})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        page.goto("/admin/")
        page.fill("#id_username", "operator")
        page.fill("#id_password", PASSWORD)
        page.click("input[type=submit]")
        expect(page.locator("#user-tools")).to_contain_text("operator")
        yield page
        browser.close()
    assert errors == []


@pytest.fixture
def shoot(tmp_path: Path) -> Callable[[Page, str], None]:
    """Takes a picture in both themes, and checks that nothing is wider than the window."""
    folder = Path(os.environ.get("OUTBOX_SCREENSHOTS", tmp_path))

    def picture(page: Page, name: str) -> None:
        page.wait_for_load_state("load")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.evaluate("document.activeElement.blur()")
            path = folder / f"admin-{name}{'' if scheme == 'light' else '-dark'}.png"
            page.screenshot(path=path, full_page=True, animations="disabled")
            assert page.evaluate(TOO_WIDE) == [], f"{name} is wider than its place"

    return picture


def test_an_operator_looks_at_every_page(page: Page, shoot: Callable[[Page, str], None]) -> None:
    dead = scene.fill()
    for model, shown in (
        ("outboxmessage", "parked: its key waits"),
        ("archivedmessage", "S-10380"),
        ("processinglog", "no such customer"),
        ("hold", "S-10471"),
        ("topicstate", "open"),
    ):
        page.goto(url_of(model))
        expect(page.locator("#result_list")).to_contain_text(shown)
        shoot(page, model)
    page.goto(url_of("outboxmessage"))
    page.get_by_label("topic").fill("order.paid")
    page.locator(".outbox-filter input[type=submit]").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(3)
    page.get_by_role("link", name=str(dead.message_id)[-8:]).click()
    expect(page.locator(".outbox-body")).to_contain_text("9007199254740993")
    shoot(page, "message")


@pytest.mark.parametrize("width", [1366, 360])
def test_long_texts_make_no_page_wider(page: Page, width: int) -> None:
    rows = scene.fill_with_long_texts()
    page.set_viewport_size({"width": width, "height": 768})
    urls = [url_of(row._meta.model_name) for row in rows]
    urls += [url_of(row._meta.model_name, "change", row.pk) for row in rows]
    # A phone scrolls in the table, which has eight columns.
    wide = TOO_WIDE if width > 1000 else TOO_WIDE.replace(", .results", "")
    for language in ("en", "ar"):
        page.set_extra_http_headers({"Accept-Language": language})
        for url in urls:
            page.goto(url)
            expect(page.locator("html")).to_have_attribute("lang", language)
            assert page.evaluate(wide) == [], url
        page.goto(url_of("lock"))
        page.locator("input.action-select").check()
        page.select_option("select[name=action]", "force_release")
        page.locator("button[name=index]").click()
        expect(page.locator(".outbox-confirmation")).to_be_attached()
        page.wait_for_load_state("load")  # a click, unlike goto, does not wait for the styles
        assert page.evaluate(wide) == []


def test_case_131_an_operator_requeues_all_of_three_thousand(
    page: Page, shoot: Callable[[Page, str], None]
) -> None:
    rows = OutboxMessageFactory.build_batch(3000, dead=True)
    OutboxMessage.objects.bulk_create(rows, batch_size=500)
    page.goto(url_of("outboxmessage", state="dead"))
    page.check("#action-toggle")
    page.get_by_text("Select all 3000 outbox messages").click()
    page.select_option("select[name=action]", "requeue")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_text("3,000 dead messages are to be requeued.")).to_be_visible()
    shoot(page, "requeue")
    page.get_by_role("button", name="Requeue").click()
    expect(page.locator(".messagelist .success")).to_have_text(
        "3,000 messages were requeued: the sweeper sends them."
    )
    assert OutboxMessage.objects.filter(state=OutboxMessage.State.OUTSTANDING).count() == 3000


def test_an_operator_releases_a_lock_by_force(
    page: Page,
    shoot: Callable[[Page, str], None],
    foreign_lock: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene.fill_registry()
    monkeypatch.setattr("sys.argv", ["manage.py", "runsweeper"])
    handle = locks["default"].obtain("OutboxSweeper")
    assert handle is not None
    page.goto(url_of("lock"))
    held = page.locator(".outbox-locks tr", has_text="OutboxSweeper")
    expect(held).to_contain_text(re.compile("held.*pid", re.DOTALL))
    expect(page.locator(".outbox-locks tr", has_text="Archiver")).to_contain_text("last:")
    expect(page.locator(".outbox-locks tr", has_text="nightly")).to_contain_text("expired")
    shoot(page, "locks")
    held.locator("input[type=checkbox]").check()
    page.select_option("select[name=action]", "force_release")
    page.get_by_role("button", name="Go").click()
    expect(page.locator("#content")).to_contain_text("its token becomes invalid at once")
    shoot(page, "force-release")
    page.get_by_role("button", name="Release by force").click()
    expect(page.locator(".messagelist .success")).to_contain_text("OutboxSweeper was released")
    expect(held).to_contain_text("free")
    row = Lock.objects.get(resource="OutboxSweeper")
    assert (row.owner, row.token, row.forced_by) == (None, handle.token + 1, "operator")
    assert LogEntry.objects.get().object_repr == "OutboxSweeper"
    handle.release()


@pytest.fixture
def foreign_lock(transactional_db: None) -> Iterator[None]:
    """On PostgreSQL, a lock of some other program."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(4711)")
            yield
            cursor.execute("SELECT pg_advisory_unlock(4711)")
    else:
        yield
