"""The Locks page: what it shows, and release by force."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import DatabaseError
from django.test import Client, override_settings

from django_outbox_lock import LockLost, locks, signals
from django_outbox_lock.admin.shown import NOTHING
from django_outbox_lock.clock import SECOND
from django_outbox_lock.exceptions import LockUnavailable
from django_outbox_lock.models import Lock
from tests.admin.conftest import url_of
from tests.factories import LockFactory, now

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_outbox_lock.backends.locks.handle import LockHandle
    from tests.admin.conftest import LogIn

pytestmark = pytest.mark.django_db(transaction=True)

RESOURCE = "OutboxSweeper"


@pytest.fixture
def handle() -> Iterator[LockHandle]:
    """A lock that is really held, by this process."""
    held = locks["default"].obtain(RESOURCE)
    assert held is not None
    yield held
    held.release()


def rows(client: Client) -> dict[str, str]:
    """The text of each line of the page, by resource."""
    page = client.get(url_of("lock"))
    assert page.status_code == 200
    table = page.content.decode().partition('id="result_list"')[2]
    lines = re.findall(r'<th scope="row"[^>]*>(.*?)</th>(.*?)</tr>', table, re.DOTALL)
    return {name: " ".join(re.sub(r"<[^>]*>", " ", rest).split()) for name, rest in lines}


def choose(client: Client, *values: str, **more: str) -> Any:
    data = {"action": "force_release", "_selected_action": values, "select_across": "0", **more}
    return client.post(url_of("lock"), data)


def said(response: Any) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def test_a_held_lock_is_shown_with_its_holder(root: Client, handle: LockHandle) -> None:
    line = rows(root)[RESOURCE]
    assert line.startswith("held")
    for text in ("pid", str(handle.token), locks["default"].label):
        assert text in line
    session_bound = locks["default"].session_bound
    assert ("session-bound" in line) == session_bound
    assert bool(re.search(r"in \d+ s", line)) != session_bound


def test_a_lease_has_its_remaining_time(root: Client) -> None:
    LockFactory.create(resource="report", held=True, expires_at=now() + 42 * SECOND)
    assert re.search(
        r"held runsweeper host-1, pid 4711 lease 1 .* in 4[12] s", rows(root)["report"]
    )


def test_k7_of_a_free_lock_the_last_holder_is_shown(root: Client, handle: LockHandle) -> None:
    handle.release()
    line = rows(root)[RESOURCE]
    assert line.startswith("free last:")
    assert "ago" in line
    assert f" {handle.token} " in line


def test_a_lock_that_nobody_ever_held_is_free(root: Client) -> None:
    LockFactory.create(resource="never")
    assert rows(root)["never"].startswith(f"free {NOTHING} {NOTHING} 0")


def test_an_expired_lease_says_since_when(root: Client) -> None:
    past = now() - 100 * SECOND
    LockFactory.create(resource="report", held=True, acquired_at=past, last_seen_at=past)
    assert "expired" in rows(root)["report"]
    assert "40 s ago" in rows(root)["report"]


def test_an_empty_registry_says_so(root: Client) -> None:
    assert "Nobody has ever held a lock" in root.get(url_of("lock")).content.decode()


@pytest.mark.parametrize(
    "error", [LockUnavailable("no privilege"), DatabaseError("gone"), RuntimeError("a driver")]
)
def test_what_cannot_be_looked_at_is_not_verified(
    root: Client, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    LockFactory.create(resource=RESOURCE, held=True)

    def holders() -> None:
        raise error

    monkeypatch.setattr(locks["default"], "holders", holders)
    page = root.get(url_of("lock"))
    assert page.status_code == 200
    assert str(error) in page.content.decode()
    assert rows(root)[RESOURCE].startswith("not verified")


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@override_settings(OUTBOX_LOCK={"default": {}, "other": {}})
def test_each_database_has_its_table(root: Client) -> None:
    LockFactory.create(resource="here")
    Lock.objects.using("other").create(id="0" * 64, resource="there")
    page = root.get(url_of("lock")).content.decode()
    assert "Database “default”" in page
    assert "Database “other”" in page
    assert set(rows(root)) == {"here", "there"}


def test_force_release_asks_first_and_then_acts(log_in: LogIn, handle: LockHandle) -> None:
    client = log_in("view_lock", "force_release_lock")
    forced: list[dict[str, Any]] = []

    def receiver(**named: Any) -> None:
        forced.append(named)

    signals.lock_forced.connect(receiver)
    seen = f"default:{handle.token}:{RESOURCE}"
    assert f'value="{seen}"' in client.get(url_of("lock")).content.decode()
    asked = choose(client, seen)
    page = asked.content.decode()
    assert "its token becomes invalid at once" in page
    consequence = "session is ended" if locks["default"].session_bound else "lease is broken"
    assert consequence in page
    assert Lock.objects.get(resource=RESOURCE).token == handle.token
    done = choose(client, seen, confirmed="yes")
    assert done.status_code == 302
    assert "was released by force" in said(done)[0]
    row = Lock.objects.get(resource=RESOURCE)
    assert (row.token, row.owner, row.forced_by) == (handle.token + 1, None, "operator")
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.object_repr) == (row.pk, RESOURCE)
    assert f"token {handle.token}" in entry.change_message
    assert [(one["resource"], one["forced_by"]) for one in forced] == [(RESOURCE, "operator")]
    with pytest.raises(LockLost):
        handle.ensure_held()
    signals.lock_forced.disconnect(receiver)


def test_what_has_changed_since_is_left_alone(log_in: LogIn, handle: LockHandle) -> None:
    """Else the click would end the successor of the one that the operator meant."""
    client = log_in("view_lock", "force_release_lock")
    for more in ({}, {"confirmed": "yes"}):
        response = choose(client, f"default:{handle.token - 1}:{RESOURCE}", **more)
        assert "has changed since the page was shown: nothing was done" in said(response)[-1]
    handle.ensure_held()
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    "value", ["", "x", "default:1", "default:x:a", "nowhere:1:a", "default:1:"]
)
def test_values_of_no_page_of_ours_do_nothing(root: Client, value: str) -> None:
    assert choose(root, value, confirmed="yes").status_code in {200, 302}
    assert not Lock.objects.exists()


def test_a_failure_is_told_not_raised(
    root: Client, handle: LockHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def force_release(*args: Any, **named: Any) -> bool:
        raise LockUnavailable("the store is away")

    monkeypatch.setattr(locks["default"], "force_release", force_release)
    done = choose(root, f"default:{handle.token}:{RESOURCE}", confirmed="yes")
    assert said(done) == [f"{RESOURCE} was not released: the store is away"]
    assert not LogEntry.objects.exists()


def test_no_page_shows_the_password_of_a_store(
    root: Client, handle: LockHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers quote the URL that they were given."""

    def refused(*args: Any, **named: Any) -> bool:
        raise LockUnavailable("no answer from redis://app:secret@cache:6379/0" + "x" * 10_000)

    monkeypatch.setattr(locks["default"], "force_release", refused)
    monkeypatch.setattr(locks["default"], "holders", refused)
    (told,) = said(choose(root, f"default:{handle.token}:{RESOURCE}", confirmed="yes"))
    page = root.get(url_of("lock")).content.decode()
    for text in (told, page):
        assert "@cache:6379" in text
        assert "secret" not in text
        assert "x" * 2001 not in text  # a cookie may have to carry it


def test_without_the_permission_there_is_nothing_to_choose(
    log_in: LogIn, handle: LockHandle
) -> None:
    client = log_in("view_lock")
    page = client.get(url_of("lock"))
    assert RESOURCE in page.content.decode()
    assert "action-select" not in page.content.decode()
    choose(client, f"default:{handle.token}:{RESOURCE}", confirmed="yes")
    handle.ensure_held()


def test_a_get_and_a_post_without_a_csrf_token_do_nothing(root: Client, handle: LockHandle) -> None:
    query = {"action": "force_release", "confirmed": "yes"}
    seen = f"default:{handle.token}:{RESOURCE}"
    root.get(url_of("lock", **query, _selected_action=seen))
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = root.cookies
    assert choose(strict, seen, confirmed="yes").status_code == 403
    handle.ensure_held()


def test_nobody_without_permission_sees_the_page(log_in: LogIn) -> None:
    assert log_in("view_outboxmessage").get(url_of("lock")).status_code == 403
