"""Requests that no page of ours makes get an answer, on every page of every table: never a 500.

The test client raises what a view lets escape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest
from django.contrib import admin
from django.contrib.messages import get_messages

from django_outbox_lock.models import Hold, Lock, OutboxMessage
from tests.admin.conftest import url_of
from tests.admin.scene import fill

if TYPE_CHECKING:
    from django.test import Client

ADMINS = {
    str(model._meta.model_name): model_admin
    for model, model_admin in admin.site._registry.items()
    if model._meta.app_label == "django_outbox_lock"
}
TEXTS = {
    "NUL": b"a\0b",
    "long": b"x" * 5000,
    "not UTF-8": b"\xff\xfe",
    "surrogate": b"\xed\xa0\x80",
    "large": b"9" * 30,
    "more digits than Python converts": b"9" * 5000,
    "64 bits": str(2**63).encode(),
    "negative": b"-1",
    "other digits": "\N{ARABIC-INDIC DIGIT FIVE}\N{SUPERSCRIPT TWO}".encode(),
    "no number": b"nan",
    "quoted": b"_5F_2F_ZZ",
    "formats": b"%s%(a)s%",
    "empty": b"",
}
# Django goes back to the list at the first that it does not know: one in a request.
PARAMETERS = ("q", "p", "o", "all", "using", "state", "topic", "consumer", "before", "body__gt")
FIELDS = ("action", "_selected_action", "select_across", "index", "up_to", "confirmed")

# The two that differ most in what they refuse: SQLite next to nothing, PostgreSQL a NUL.
ON = [pytest.param(name, marks=pytest.mark.server(name)) for name in ("sqlite", "postgresql")]

pytestmark = pytest.mark.django_db
every_table = pytest.mark.parametrize("model", ADMINS)
every_text = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


@pytest.fixture(params=ON, autouse=True)
def _server() -> None:
    """The one that the run is on."""


@pytest.fixture
def client(root: Client) -> Client:
    fill()
    return root


def test_every_table_of_the_app_has_its_pages() -> None:
    assert len(ADMINS) == 6


@every_text
@every_table
def test_a_list_takes_any_parameter(client: Client, model: str, text: bytes) -> None:
    for name in PARAMETERS:
        response = client.get(f"{url_of(model)}?{urlencode({name: text})}")
        assert response.status_code in {200, 302, 400}, name


@every_text
@every_table
def test_a_search_is_for_any_text_in_any_filter(client: Client, model: str, text: bytes) -> None:
    for more in ({"topic": "t", "consumer": "c"}, {"topic": text, "consumer": text}):
        response = client.get(f"{url_of(model)}?{urlencode({'q': text, **more})}")
        assert response.status_code in {200, 302, 400}


@every_text
@every_table
def test_a_row_that_cannot_be_is_not_there(client: Client, model: str, text: bytes) -> None:
    rest = urlencode({"_changelist_filters": text, "using": text, "_to_field": text})
    for page in ("", "change/", "history/", "delete/", "body/", f"{quote(text)}/body/"):
        response = client.get(f"{url_of(model)}{quote(text)}/{page}?{rest}")
        assert response.status_code in {200, 301, 302, 400, 403, 404}, page


@every_text
@every_table
def test_an_action_takes_any_field(client: Client, model: str, text: bytes) -> None:
    before = [list(kept.objects.order_by("pk").values()) for kept in (OutboxMessage, Hold, Lock)]
    for action in ADMINS[model].actions or ("delete_selected",):
        for name in FIELDS:
            sound: dict[str, Any] = {"action": action, "select_across": "0", "up_to": "0"}
            sound |= {"_selected_action": "1", "confirmed": "yes", "index": "0"}
            response = client.post(
                url_of(model),
                urlencode({**sound, name: text}),
                content_type="application/x-www-form-urlencoded",
            )
            assert response.status_code in {200, 302, 400}, name
    after = [list(kept.objects.order_by("pk").values()) for kept in (OutboxMessage, Hold, Lock)]
    assert after == before


@every_text
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("confirmed", ["", "yes"])
def test_a_lock_is_released_by_what_its_page_has_written_only(
    client: Client, text: bytes, place: int, confirmed: str
) -> None:
    before = list(Lock.objects.order_by("pk").values())
    parts = [b"default", b"1", b"OutboxSweeper"]
    parts[place] = text
    data = {"action": "force_release", "_selected_action": b":".join(parts), "confirmed": confirmed}
    response = client.post(
        url_of("lock"), urlencode(data), content_type="application/x-www-form-urlencoded"
    )
    assert response.status_code == 302
    assert [str(message) for message in get_messages(response.wsgi_request)]
    assert list(Lock.objects.order_by("pk").values()) == before
