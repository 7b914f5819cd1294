"""The pages in other projects: their sites, formats, directions of writing and broken databases."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import DatabaseError, connections
from django.test import override_settings
from django.urls import path

from django_outbox_lock.admin import HoldAdmin
from django_outbox_lock.admin.actions import LISTED
from django_outbox_lock.models import Hold, OutboxMessage
from tests.admin.conftest import VIEW, url_of
from tests.factories import (
    ArchivedMessageFactory,
    HoldFactory,
    LockFactory,
    OutboxMessageFactory,
    ProcessingLogFactory,
    TopicStateFactory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from django.test import Client

    from tests.admin.conftest import LogIn
    from tests.conftest import RunManage

pytestmark = pytest.mark.django_db

two_databases = pytest.mark.django_db(databases=["default", "other"])
TWO = override_settings(OUTBOX_LOCK={"default": {}, "other": {}})

own_site = admin.AdminSite(name="ops")
own_site.register(Hold, HoldAdmin)
urlpatterns = [path("ops/", own_site.urls), path("admin/", admin.site.urls)]


def elsewhere(**columns: Any) -> Any:
    """A dead message in the outbox of the second database."""
    row = OutboxMessageFactory.build(dead=True, **columns)
    row.save(using="other")
    return row


def requeue(client: Client, ids: list[int], **query: Any) -> list[str]:
    """What is said after the confirmed action."""
    data = {"action": "requeue", "_selected_action": ids, "confirmed": "yes", "up_to": max(ids)}
    done = client.post(url_of("outboxmessage", **query), data)
    assert done.status_code == 302
    return [str(message) for message in get_messages(done.wsgi_request)]


@override_settings(ROOT_URLCONF=__name__)
def test_a_site_with_the_holds_alone_shows_them(root: Client) -> None:
    head = OutboxMessageFactory.create(key="S-1", dead=True)
    hold = HoldFactory.create(order_key=head.order_key, head_id=head.pk)
    for page in ("", f"{hold.pk}/change/"):
        response = root.get(f"/ops/django_outbox_lock/hold/{page}")
        assert response.status_code == 200
        assert f">{head.pk}<" in response.content.decode()


@pytest.mark.django_db(transaction=True)  # the locks are looked at from another connection
def test_no_id_or_token_has_separators(root: Client) -> None:
    head = OutboxMessageFactory.create(id=1234567, key="S-1", dead=True)
    hold = HoldFactory.create(order_key=head.order_key, head_id=head.pk)
    lock = LockFactory.create(resource="report", held=True, token=1234567, pid=1234567)
    pages = [url_of(model) for model in ("outboxmessage", "hold", "lock")]
    pages += [
        url_of("outboxmessage", "change", head.pk),
        url_of("hold", "change", hold.pk),
        url_of("lock", "change", lock.pk),
    ]
    for language in ("en", "de"):
        with override_settings(LANGUAGE_CODE=language, USE_THOUSAND_SEPARATOR=True):
            for page in pages:
                text = root.get(page, headers={"accept-language": language}).content.decode()
                assert "1234567" in text, page
                assert "1,234,567" not in text, page
                assert "1.234.567" not in text, page


def test_a_body_is_written_from_left_to_right_in_every_language(root: Client) -> None:
    row = OutboxMessageFactory.create(headers="[", dead=True)
    page = root.get(
        url_of("outboxmessage", "change", row.pk), headers={"accept-language": "ar"}
    ).content.decode()
    assert 'dir="rtl"' in page
    assert page.count('<pre class="outbox-body" dir="ltr"') == 2


def test_the_page_of_a_row_shows_texts_as_a_whole(root: Client) -> None:
    """A list cuts them; what shows on hovering only is not there for a keyboard or a phone."""
    key, error = "k" * 255, "e" * 2000
    rows = [
        OutboxMessageFactory.create(key=key),
        ArchivedMessageFactory.create(key=key),
        ProcessingLogFactory.create(key=key, correlation_id="", status="failed", last_error=error),
        TopicStateFactory.create(open=True, last_error=error),
    ]
    for row in rows:
        url = url_of(row._meta.model_name, "change", row.pk)
        shown = re.sub("<[^>]*>", " ", root.get(url).content.decode())
        for text in (key, error):
            assert text in shown or text not in vars(row).values(), url
        assert url in root.get(url_of(row._meta.model_name)).content.decode()


RELABELLED = """
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import Client
from django_outbox_lock import lock, publish
from django_outbox_lock.models import Hold, Lock, OutboxMessage
from django_outbox_lock.testing import drain

user = User.objects.create_user("operator", is_staff=True)
user.user_permissions.set(Permission.objects.filter(content_type__app_label="messaging"))
client = Client(SERVER_NAME="localhost")
client.force_login(user)
with transaction.atomic():
    publish("order.created", {"number": "A-1"}, key="A-1")
row = OutboxMessage.objects.get()

def page(path):
    response = client.get(f"/admin/messaging/{path}")
    assert response.status_code == 200, path
    return response.content.decode()

with lock("nightly-report"):
    shown = page("lock/")
    assert "outbox-locks" in shown and "force_release" in shown
shown = page("outboxmessage/")
assert all(f'value="{action}"' in shown for action in ("requeue", "kill", "let_go"))
assert "1 row" in shown
assert "A-1" in page(f"outboxmessage/{row.pk}/change/")
assert client.get(f"/admin/messaging/outboxmessage/{row.pk}/body/").status_code == 200
for model in ("archivedmessage", "hold", "processinglog", "topicstate"):
    assert "Nothing to show." in page(f"{model}/")
assert OutboxMessage.objects.filter(pk=row.pk).kill(reason="test") == 1
assert Hold.objects.stuck().count() == 0
assert OutboxMessage.objects.filter(pk=row.pk).requeue() == 1
assert [message.topic for message in drain()] == ["order.created"]
print("all was there")
"""


@pytest.mark.server("sqlite")
def test_an_app_with_another_label_has_its_pages_and_permissions(
    run_manage: RunManage, tmp_path: Path
) -> None:
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.admin.relabelled",
        "DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}",
    }
    locked = ["runlocked", "nightly", "--", "check"]
    refused = run_manage(*locked, env=env, check=False)
    assert "messaging has migrations that are not applied" in refused.stderr
    run_manage("migrate", env=env)
    run_manage(*locked, env=env)
    assert "all was there" in run_manage("shell", "-c", RELABELLED, env=env).stdout


@two_databases
@TWO
def test_the_history_of_a_message_is_looked_for_on_its_database(root: Client) -> None:
    row = elsewhere()
    page = root.get(url_of("outboxmessage", "change", row.pk, using="other")).content.decode()
    there = url_of("outboxmessage", "history", row.pk, _changelist_filters="using=other")
    assert f'href="{there}"' in page


@two_databases
@TWO
def test_every_link_of_a_lock_page_leads_somewhere(root: Client) -> None:
    """The list of locks shows all databases, and takes no filter."""
    lock = LockFactory.build(resource="report")
    lock.save(using="other")
    page = root.get(url_of("lock", "change", lock.pk, using="other")).content.decode()
    links = set(re.findall(r'href="(/admin/[^"]*/lock/[^"]*)"', page))
    assert links
    for link in links:
        assert root.get(html.unescape(link), follow=True).status_code == 200, link


@two_databases
@TWO
def test_the_question_leads_back_to_the_list_that_it_came_from(root: Client) -> None:
    row = elsewhere()
    asked = root.post(
        url_of("outboxmessage", using="other", state="dead"),
        {"action": "requeue", "_selected_action": [row.pk]},
    )
    back = url_of("outboxmessage", using="other", state="dead").replace("&", "&amp;")
    page = asked.content.decode()
    assert page.count(f'href="{back}"') == 2  # among the breadcrumbs, and without JavaScript
    assert 'href="#"' not in page.partition("<form method")[2]


@two_databases
@TWO
def test_the_log_names_the_database_where_there_are_several(root: Client) -> None:
    rows = [elsewhere() for _ in range(3)]
    requeue(root, [rows[0].pk], using="other")
    requeue(root, [rows[1].pk, rows[2].pk], using="other")
    messages = list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))
    assert messages[0] == "Requeued on 'other'."
    assert messages[1].startswith("Requeued on 'other'. 2 messages; selected: ")


def test_the_log_names_what_was_selected(root: Client) -> None:
    rows = OutboxMessageFactory.create_batch(3, dead=True)
    requeue(root, [rows[0].pk, rows[2].pk])
    message = LogEntry.objects.get().change_message
    assert message == f"Requeued. 2 messages; selected: {rows[0].pk}, {rows[2].pk}."


def test_the_log_names_no_more_of_what_was_selected_than_people_read(root: Client) -> None:
    rows = OutboxMessageFactory.create_batch(LISTED + 1, dead=True)
    requeue(root, [row.pk for row in rows])
    message = LogEntry.objects.get().change_message
    assert message.endswith(f"{rows[LISTED - 1].pk} and 1 more.")


def test_an_action_that_a_database_ends_is_told_and_logged(
    root: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier batches of it may have committed: somebody has changed them."""

    def broken(self: Any, *, limit: int | None = None) -> int:
        raise DatabaseError("cannot execute UPDATE in a read-only transaction")

    rows = OutboxMessageFactory.create_batch(2, dead=True)
    monkeypatch.setattr(type(OutboxMessage.objects.all()), "requeue", broken)
    (said,) = requeue(root, [row.pk for row in rows])
    assert "read-only" in said
    assert "choose the action again" in said
    message = LogEntry.objects.get().change_message
    assert message.startswith("Requeued. Ended by an error, perhaps after a part: cannot execute")


@pytest.fixture
def _no_tables() -> Iterator[None]:
    """The second database is there and was never migrated."""
    connection = connections["other"]
    renamed = [OutboxMessage._meta.db_table, Hold._meta.db_table]
    with connection.schema_editor() as editor:
        for table in renamed:
            editor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    yield
    with connection.schema_editor() as editor:
        for table in renamed:
            editor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@TWO
@pytest.mark.usefixtures("_no_tables")
@pytest.mark.parametrize("model", ["outboxmessage", "hold"])
def test_a_list_says_which_database_has_failed(log_in: LogIn, model: str) -> None:
    client = log_in(*VIEW)
    for page in (("changelist",), ("change", 1), ("history", 1)):
        response = client.get(url_of(model, *page, using="other"))
        assert response.status_code == 503
        text = response.content.decode()
        assert "“other”" in text
        assert OutboxMessage._meta.db_table in text or Hold._meta.db_table in text
        assert url_of(model, using="default") in text
    assert client.get(url_of(model)).status_code == 200


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@TWO
@pytest.mark.usefixtures("_no_tables")
def test_a_download_says_which_database_has_failed(root: Client) -> None:
    response = root.get(url_of("outboxmessage", "body", 1, using="other"))
    assert response.status_code == 503
    assert "“other”" in response.content.decode()
