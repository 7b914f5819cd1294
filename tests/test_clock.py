"""The server's clock as microseconds since 1970 UTC, and the conversions."""

from __future__ import annotations

import datetime as dt
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from django.db import NotSupportedError, connection, transaction
from django.utils import timezone

from django_outbox_lock.clock import SECOND, ServerTime, to_datetime, to_microseconds
from django_outbox_lock.models import Hold
from tests.factories import HoldFactory

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.conftest import WaitUntil

ZONES = pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/Los_Angeles"])
USE_TZ = pytest.mark.parametrize("use_tz", [True, False])


def server_time(offset: int = 0) -> int:
    compiler = Hold.objects.all().query.get_compiler("default")
    sql, params = compiler.compile(ServerTime(offset))
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql}", params)
        return int(cursor.fetchone()[0])


@pytest.mark.django_db
@USE_TZ
@ZONES
def test_the_server_counts_from_1970_utc(settings: Settings, zone: str, *, use_tz: bool) -> None:
    """Case 055: whatever zone the application and its session live in."""
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    assert abs(server_time() / SECOND - time.time()) < 2


@pytest.mark.django_db
def test_it_moves_inside_a_transaction(wait_until: WaitUntil) -> None:
    with transaction.atomic():
        first = server_time()
        wait_until(lambda: server_time() > first, what="a later time in the same transaction")


@pytest.mark.django_db
def test_an_offset_is_added_by_the_server() -> None:
    assert 59 < (server_time(60 * SECOND) - server_time()) / SECOND <= 60
    assert -61 < (server_time(-60 * SECOND) - server_time()) / SECOND < -59


@pytest.mark.django_db
def test_it_serves_in_every_place_of_a_statement() -> None:
    """A condition, a value of an UPDATE and a value that is read."""
    row = HoldFactory.create()
    hour = 3600 * SECOND
    changed = Hold.objects.filter(head_id__lt=ServerTime(-hour)).update(head_id=ServerTime(hour))
    assert changed == 1
    row.refresh_from_db()
    assert abs(row.head_id / SECOND - time.time() - 3600) < 2
    [read] = Hold.objects.values_list(ServerTime(), flat=True)
    assert abs(read / SECOND - time.time()) < 2


def test_an_unknown_server_is_refused_by_name() -> None:
    with pytest.raises(NotSupportedError, match=r"server clock.*'firebird'"):
        ServerTime.sql(SimpleNamespace(vendor="firebird"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("vendor", "words"),
    [
        ("microsoft", "DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME())"),
        ("oracle", "SYS_EXTRACT_UTC(SYSTIMESTAMP)"),
        ("cockroachdb", "clock_timestamp()"),
        ("yugabyte", "clock_timestamp()"),
        ("tidb", "UTC_TIMESTAMP(6)"),
    ],
)
def test_dialects_that_no_test_server_speaks(vendor: str, words: str) -> None:
    """Their words only: no such server has run them."""
    assert words in ServerTime.sql(SimpleNamespace(vendor=vendor))  # type: ignore[arg-type]


def test_moments_become_exact_numbers() -> None:
    moment = dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=ZoneInfo("America/Los_Angeles"))
    assert to_microseconds(dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) == 0
    assert to_microseconds(dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)) == -1
    assert to_microseconds(moment) == 1_774_773_000_123_456
    assert to_microseconds(dt.datetime.max.replace(tzinfo=dt.UTC)) == 253_402_300_799_999_999


@USE_TZ
@ZONES
def test_numbers_become_moments_and_back(settings: Settings, zone: str, *, use_tz: bool) -> None:
    settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
    number = 1_774_773_000_123_456
    moment = to_datetime(number)
    assert timezone.is_aware(moment) is use_tz
    assert to_microseconds(moment) == number
    assert abs(to_microseconds(timezone.now()) / SECOND - time.time()) < 2
