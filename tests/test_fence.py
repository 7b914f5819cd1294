"""The fence: conditional writes of one row, judged by their row counts."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_outbox_lock import dberrors, fence, fence_sql, keys
from django_outbox_lock.exceptions import LockLost
from django_outbox_lock.models import Hold, Lock
from django_outbox_lock.waits import bounded_session, bounded_wait
from tests.sessions import binding_on_the_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.backends.base.base import BaseDatabaseWrapper

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])

RESOURCE = "nightly-report"


@pytest.fixture
def stranger() -> Iterator[BaseDatabaseWrapper]:
    """A second session on the same database."""
    with contextlib.closing(connections.create_connection("default")) as other:
        other.inc_thread_sharing()
        yield other


def claim(lock_id: str, **changes: Any) -> fence.Claim:
    given = {"backend": "lease", "lease": 60.0, "expires": True, "arbitrated": False, **changes}
    return fence.Claim(resource=RESOURCE, lock_id=lock_id, **given)


def bump(lock_id: str, expected: int | None = None, **changes: Any) -> int | None:
    return fence.bump(connection, claim(lock_id, **changes), expected)


def ticket(lock_id: str, token: int) -> fence.Ticket:
    return fence.Ticket(RESOURCE, lock_id, token)


def row() -> Lock:
    return Lock.objects.get(pk=keys.resource_id(RESOURCE))


def test_the_first_token_is_one() -> None:
    assert fence.current_token(connection, RESOURCE) == 0
    assert bump("a") == 1
    assert fence.current_token(connection, RESOURCE) == 1
    assert row().resource == RESOURCE


def test_a_bump_is_refused_while_somebody_else_owns_the_row() -> None:
    assert bump("a") == 1
    assert bump("b") is None
    assert row().owner == "a"


def test_a_bump_follows_a_free_row_and_the_token_goes_on() -> None:
    token = bump("a")
    assert token
    assert fence.free(connection, ticket("a", token))
    assert not fence.free(connection, ticket("a", token))
    assert bump("b") == token + 1


def test_a_bump_follows_an_expired_lease() -> None:
    bump("a")
    Lock.objects.update(expires_at=1)
    assert bump("b") == 2


def test_a_lease_beyond_two_leases_has_expired() -> None:
    """K24: the server's clock stepped back; nobody ever asks for so long a lease."""
    bump("a", lease=60.0)
    Lock.objects.update(expires_at=F("expires_at") + 3_600_000_000)
    assert bump("b", lease=600.0) == 2


def test_the_holders_stored_lease_counts_not_the_contenders() -> None:
    bump("a", lease=600.0)
    assert bump("b", lease=1.0) is None


def test_an_arbitrated_claim_follows_an_owner_of_the_same_backend_only() -> None:
    """The store has shut out the others of its own; of another store it knows nothing."""
    session = {"expires": False, "arbitrated": True}
    assert bump("a", backend="postgresql:1", **session) == 1
    assert bump("b", backend="postgresql:1", **session) == 2
    assert bump("c", backend="postgresql:2", **session) is None
    assert bump("d") is None


def test_an_arbitrated_claim_follows_an_owner_of_another_backend_whose_lease_has_passed() -> None:
    bump("a")
    Lock.objects.update(expires_at=1)
    assert bump("b", backend="postgresql:1", expires=False, arbitrated=True) == 2


def test_a_session_that_was_not_seen_for_two_leases_is_gone() -> None:
    bump("a", backend="postgresql:1", expires=False)
    now = row().last_seen_at
    assert now is not None
    Lock.objects.update(last_seen_at=now - 119_000_000)
    assert bump("b") is None
    Lock.objects.update(last_seen_at=now - 121_000_000)
    assert bump("b") == 2


def test_a_late_claimant_gives_up() -> None:
    """K1: it bumps only the token that it saw before it took the store's lock."""
    assert bump("a", expected=0) == 1
    fence.free(connection, ticket("a", 1))
    assert bump("late", expected=0) is None
    assert bump("b", expected=1) == 2


def test_a_touch_proves_number_and_lock_id() -> None:
    """After a failover that lost commits a number may come twice, a lock id never."""
    bump("a")
    assert fence.touch(connection, ticket("a", 1))
    assert not fence.touch(connection, ticket("a", 2))
    assert not fence.touch(connection, ticket("b", 1))


def test_a_renewal_sets_the_end_and_does_not_add() -> None:
    """Case 075."""
    bump("a", lease=10.0)
    for _ in range(3):
        assert fence.touch(connection, ticket("a", 1), lease=10.0)
    left = F("expires_at") - F("last_seen_at")
    assert 9_990_000 <= Lock.objects.values_list(left, flat=True)[0] <= 10_010_000


def test_force_acts_on_the_token_that_was_seen() -> None:
    bump("a")
    assert not fence.force(connection, RESOURCE, 2, "admin")
    assert fence.force(connection, RESOURCE, 1, "admin")
    assert (row().owner, row().token, row().forced_by) == (None, 2, "admin")
    assert row().forced_at is not None
    assert not fence.touch(connection, ticket("a", 1))
    assert not fence.force(connection, RESOURCE, 2, "admin"), "nobody holds"
    assert bump("b") == 3


def test_who_held_last_stays_in_the_row() -> None:
    bump("a")
    fence.free(connection, ticket("a", 1))
    assert row().owner is None
    assert row().host
    assert row().pid


def test_all_or_nothing() -> None:
    bump("a")
    with (
        pytest.raises(LockLost, match="token 1"),
        fence.held(ticket("b", 1), using="default"),
    ):
        Hold.objects.create(order_key=1, head_id=1)
    assert not Hold.objects.exists()
    with fence.held(ticket("a", 1), using="default"):
        Hold.objects.create(order_key=1, head_id=1)
    assert Hold.objects.exists()


def while_held(stranger: BaseDatabaseWrapper, after_fence: Callable[[], None]) -> list[Any]:
    """A fenced write, and a successor's bump that begins between its fence and its commit."""
    order: list[Any] = []
    successor = threading.Thread(target=lambda: order.append(_bump_when_free(stranger)))
    with fence.held(ticket("a", 1), using="default"):
        successor.start()
        time.sleep(0.3)  # for the successor to get to the row's lock; sooner only weakens the test
        order.append("about to commit")
        after_fence()
    successor.join(20)
    return order


def _bump_when_free(stranger: BaseDatabaseWrapper) -> int | None:
    claimant = claim("b", backend="postgresql:1", arbitrated=True, expires=False)
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        try:
            return fence.bump(stranger, claimant)
        except Exception as error:
            if not dberrors.is_transient(error):
                raise
    return None


def test_a_successors_bump_waits_for_the_commit(stranger: BaseDatabaseWrapper) -> None:
    """Two sessions: either the mark was committed under the token, or it never happened."""
    bump("a", backend="postgresql:1", expires=False)
    order = while_held(stranger, lambda: None)
    assert order == ["about to commit", 2]
    with pytest.raises(LockLost), fence.held(ticket("a", 1), using="default"):
        pass


@pytest.mark.server("postgresql")
def test_a_plain_read_would_not_do(stranger: BaseDatabaseWrapper) -> None:
    """The negative control: a holder that only reads commits after its successor's bump."""
    bump("a", backend="postgresql:1", expires=False)
    with transaction.atomic():
        seen = Lock.objects.filter(token=1, owner="a").exists()
        assert _bump_when_free(stranger) == 2
        Hold.objects.create(order_key=1, head_id=1)
    assert seen
    assert Hold.objects.exists(), "the stale holder wrote"


def test_waiting_for_the_row_is_bounded(stranger: BaseDatabaseWrapper) -> None:
    """A bump behind a transaction that does not end gives up by the server's time-out."""
    bump("a", backend="postgresql:1", expires=False)
    with fence.held(ticket("a", 1), using="default"):
        begin = time.monotonic()
        waits = bounded_session if connection.vendor != "postgresql" else _lock_timeout
        with pytest.raises(Exception) as caught, waits(stranger, 0.5):
            fence.bump(stranger, claim("b", backend="postgresql:1", arbitrated=True))
        assert dberrors.is_transient(caught.value)
        assert 0.3 < time.monotonic() - begin < 5


@contextlib.contextmanager
def _lock_timeout(session: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    with session.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{seconds * 1000:.0f}"])
    yield


def test_a_bump_in_a_transaction_survives_a_row_made_by_another(
    stranger: BaseDatabaseWrapper,
) -> None:
    """A lost race for the row's creation leaves the caller's transaction usable."""
    fence.bump(stranger, claim("a"))
    with transaction.atomic():
        assert not fence._insert(connection, RESOURCE)
        assert Lock.objects.count() == 1


def test_the_session_has_its_own_limit_again() -> None:
    """An engine's ``tick`` may run on a connection that a web process goes on using."""
    ask = {"mysql": "SELECT @@SESSION.wait_timeout"}.get(connection.vendor, "SELECT 0")

    def limit() -> int:
        with connection.cursor() as cursor:
            cursor.execute(ask)
            return int(cursor.fetchone()[0])

    bump("a")
    before = limit()
    with fence.held(ticket("a", 1), using="default", idle_limit=60):
        assert limit() == (60 if connection.vendor == "mysql" else before)
    assert limit() == before


@pytest.mark.server("postgresql")
def test_the_idle_limit_ends_with_the_transaction() -> None:
    bump("a")
    ask = "SELECT current_setting('idle_in_transaction_session_timeout')"
    with fence.held(ticket("a", 1), using="default", idle_limit=7), connection.cursor() as cursor:
        cursor.execute(ask)
        assert cursor.fetchone() == ("7s",)
    with connection.cursor() as cursor:
        cursor.execute(ask)
        assert cursor.fetchone() == ("0",)


def test_a_bump_is_one_statement_where_an_update_can_tell() -> None:
    bump("a")
    Lock.objects.update(owner=None)
    with CaptureQueriesContext(connection) as captured:
        bump("b")
    tells = fence_sql.returns(connection) or connection.vendor in fence_sql.LAST_ID
    assert len(captured) == (1 if tells else 2)


def test_a_release_in_autocommit_does_not_weaken_the_commit_of_others() -> None:
    """On PostgreSQL it does without the flush; in a caller's transaction it must not."""
    assert bump("a") == 1
    with CaptureQueriesContext(connection) as captured, transaction.atomic():
        assert fence.free(connection, fence.Ticket(RESOURCE, "a", 1))
    assert not any("synchronous_commit" in query["sql"] for query in captured)
    assert row().owner is None
    assert bump("b") == 2
    with CaptureQueriesContext(connection) as captured:
        assert fence.free(connection, fence.Ticket(RESOURCE, "b", 2))
    (query,) = captured
    assert ("synchronous_commit" in query["sql"]) is (connection.vendor in fence_sql.NO_FLUSH)
    assert row().owner is None


def test_bounded_wait_does_not_disturb_a_bump() -> None:
    with bounded_wait(connection, 2.0):
        assert bump("a") == 1
    assert row().owner == "a"


def test_tokens_are_lifted_where_the_server_binds_parameters() -> None:
    """A step that Django takes for a small integer is cut to 32 bits on its way (psycopg): to 0."""
    token = bump("a" * 32)
    with binding_on_the_server():
        assert fence.lift("default", "operator") == 1
        assert fence.current_token(connection, RESOURCE) == (token or 0) + fence.LIFT
