"""Archive, processing log, holds and topics; several databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox_lock.models import OutboxMessage
from tests.admin.conftest import VIEW, url_of
from tests.factories import (
    ArchivedMessageFactory,
    HoldFactory,
    OutboxMessageFactory,
    ProcessingLogFactory,
    TopicStateFactory,
)

if TYPE_CHECKING:
    from django.test import Client

    from tests.admin.conftest import LogIn

pytestmark = pytest.mark.django_db


def listed(client: Client, model: str, **query: Any) -> list[int]:
    response = client.get(url_of(model, **query))
    assert response.status_code == 200
    return [row.pk for row in response.context["cl"].result_list]


def test_every_page_opens_for_who_may_only_look(log_in: LogIn) -> None:
    client = log_in(*VIEW)
    rows = {
        "archivedmessage": ArchivedMessageFactory.create(),
        "processinglog": ProcessingLogFactory.create(result=b"1"),
        "hold": HoldFactory.create(),
        "topicstate": TopicStateFactory.create(open=True),
    }
    for model, row in rows.items():
        assert listed(client, model) == [row.pk]
        assert client.get(url_of(model, "change", row.pk)).status_code == 200


def test_a_row_that_this_version_does_not_know_costs_no_page(root: Client) -> None:
    """In a rolling upgrade the newer version may write a state that the older has no name for."""
    rows = {
        "outboxmessage": OutboxMessageFactory.create(state=99, expires_at=2**63 - 1),
        "processinglog": ProcessingLogFactory.create(status="later"),
        "topicstate": TopicStateFactory.create(breaker="ajar", open_until=2**63 - 1),
    }
    for (model, row), stored in zip(rows.items(), ("99", "later", "ajar"), strict=True):
        for page in (url_of(model), url_of(model, "change", row.pk)):
            assert f'outbox-bad">{stored}<' in root.get(page).content.decode()


def test_the_archive_is_searched_like_the_outbox(root: Client) -> None:
    archived = ArchivedMessageFactory.create(key="S-1")
    ArchivedMessageFactory.create(topic="order.paid")
    assert listed(root, "archivedmessage", q=str(archived.message_id)) == [archived.pk]
    assert listed(root, "archivedmessage", q="S-1") == [archived.pk]
    assert listed(root, "archivedmessage", topic="order.created") == [archived.pk]


def test_the_log_is_searched_by_key_and_by_hash(root: Client) -> None:
    billing = ProcessingLogFactory.create(key="m-1")
    mailing = ProcessingLogFactory.create(key="m-1", consumer="mailing")
    assert listed(root, "processinglog", q="m-1") == [mailing.pk, billing.pk]
    with CaptureQueriesContext(connection) as captured:
        assert listed(root, "processinglog", q="m-1", consumer="billing") == [billing.pk]
    assert [query for query in captured if billing.entry_hash in query["sql"]]


def test_results_are_bodies(log_in: LogIn) -> None:
    entry = ProcessingLogFactory.create(result=b'"secret"')
    page = log_in("view_processinglog").get(url_of("processinglog", "change", entry.pk))
    assert "secret" not in page.content.decode()


def test_a_hold_shows_its_head_without_a_join(root: Client) -> None:
    head = OutboxMessageFactory.create(key="S-1", dead=True)
    HoldFactory.create(order_key=head.order_key, head_id=head.pk)
    HoldFactory.create(head_id=0)
    with CaptureQueriesContext(connection) as captured:
        page = root.get(url_of("hold")).content.decode()
    assert url_of("outboxmessage", "change", head.pk, using="default") in page
    assert "gone: the key is let go" in page
    assert len(captured) <= 15


def test_a_hold_whose_head_was_deleted_is_not_said_to_end(root: Client) -> None:
    HoldFactory.create(head_id=77)
    page = root.get(url_of("hold")).content.decode()
    assert "77, which was deleted" in page
    assert "gone: the key is let go" not in page


def test_an_open_topic_has_its_next_try(root: Client) -> None:
    TopicStateFactory.create(topic="order.paid", open=True)
    page = root.get(url_of("topicstate")).content.decode()
    assert "the broker is away" in page
    assert ">in " in page


def test_a_topic_without_a_route_does_not_look_healthy(root: Client) -> None:
    TopicStateFactory.create(topic="order.piad", unroutable_since=1)
    page = root.get(url_of("topicstate")).content.decode()
    assert "no route" in page
    assert ">closed<" not in page


def test_case_137_no_list_joins_or_groups(root: Client) -> None:
    for model in ("outboxmessage", "archivedmessage", "processinglog", "hold", "topicstate"):
        with CaptureQueriesContext(connection) as captured:
            root.get(url_of(model))
        ours = [one["sql"] for one in captured if "django_outbox_lock_" in one["sql"]]
        assert ours
        assert not [sql for sql in ours if "JOIN" in sql or "GROUP BY" in sql]


def test_one_database_has_no_filter_for_it(root: Client) -> None:
    page = root.get(url_of("outboxmessage")).content.decode()
    assert "using=" not in page


@pytest.mark.django_db(databases=["default", "other"])
@override_settings(OUTBOX_LOCK={"default": {}, "other": {}})
def test_several_databases_are_chosen_by_a_filter(root: Client) -> None:
    here = OutboxMessageFactory.create(topic="here")
    there = OutboxMessageFactory.build(topic="there", dead=True)
    there.save(using="other")
    assert listed(root, "outboxmessage") == [here.pk]
    response = root.get(url_of("outboxmessage", using="other"))
    page = response.content.decode()
    assert "there" in page
    assert "using=default" in page
    filters = "using=other&state=dead"
    detail = root.get(
        url_of("outboxmessage", "change", there.pk, _changelist_filters=filters)
    ).content.decode()
    assert str(there.message_id) in detail
    data = {"action": "requeue", "_selected_action": [there.pk], "confirmed": "yes"}
    root.post(url_of("outboxmessage", using="other"), data | {"up_to": there.pk})
    moved = OutboxMessage.objects.using("other").get()
    assert moved.state == OutboxMessage.State.OUTSTANDING
    assert listed(root, "outboxmessage", using="nowhere") == [here.pk]
