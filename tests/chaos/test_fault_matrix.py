"""Every fault between a lock and its server, on every backend.

The server of each cell is its own, started with a clock that can be moved. In each cell: a loss is
told once, within the documented bound, or there is none; another process obtains in time; no
session is reopened in silence; no connection is left; the old holder's fenced writes are rejected.
Cells that other tests have are not repeated:

======================  ===========================================================================
fault                   where else
======================  ===========================================================================
blackhole               Redis, MongoDB, Azure: ``StoreFaults.test_cut_off_for_good``
outage of half a lease  Redis: ``test_an_outage_that_is_shorter_than_the_lease``; Azure:
                        ``test_one_renewal_gets_a_server_error``
lost answers            Redis, MongoDB, Azure: ``StoreFaults``; DynamoDB: ``test_dynamodb_faults``;
                        Firestore: ``test_an_answer_that_got_lost``
SIGKILL and restart     PostgreSQL: ``test_the_server_restarts``; Redis, MongoDB, Azure:
                        ``test_killed_and_restarted_while_held``
session ended inside    ``test_postgresql``, ``test_mysql_loss``
a stopped holder        ``LockContract``, ``test_mysql_loss``
======================  ===========================================================================

Not exercised: SIGKILL of moto and Firestore's emulator, which keep nothing on a disk; Firestore's
clock going back, which its time never does; SQL Server, for which there is no server here. moto
stands in for DynamoDB once more.
"""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from django_outbox_lock.exceptions import LockUnavailable
from tests import servers
from tests.chaos.proxy import Proxy
from tests.chaos.scene import MARGIN, STEADY, UNHURRIED, Scene
from tests.chaos.subjects import SUBJECTS
from tests.plugin import RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import WaitUntil
    from tests.locks.conftest import AddAlias, Make

    OwnServer = Callable[[str], servers.Server]

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["django_outbox_lock"])

HOUR = 3600.0


def on(*names: str) -> pytest.MarkDecorator:
    """The cells of one fault: each in the run that has its server."""
    cells = [
        pytest.param(name, marks=pytest.mark.server(SUBJECTS[name].server, "libfaketime"))
        for name in names
    ]
    return pytest.mark.parametrize("name", cells)


SESSIONS = [name for name, subject in SUBJECTS.items() if subject.session]
TABLES = ["lease-postgresql", "lease-mariadb", "lease-mysql"]
STORES = [name for name, subject in SUBJECTS.items() if subject.place]


@pytest.fixture(scope="module")
def own_server(request: pytest.FixtureRequest) -> Iterator[OwnServer]:
    """A function that gives a server of this module, to be killed and have its clock moved."""
    with ExitStack() as stack:
        started: dict[str, servers.Server] = {}

        def own(name: str) -> servers.Server:
            if name not in started:
                started[name] = stack.enter_context(servers.get(name, clock=True))
                request.config.stash[RUN].note(started[name])
            return started[name]

        yield own


@pytest.fixture
def scene(
    *,
    name: str,
    own_server: OwnServer,
    make: Make,
    add_alias: AddAlias,
    wait_until: WaitUntil,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Scene]:
    """At its end no connection and no session may be left."""
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(variable, "outbox")
    subject = SUBJECTS[name]
    server = own_server(subject.server)
    with Proxy(server.port) as proxy:
        scene = Scene(subject, server, proxy, wait_until)
        scene.furnish(make, add_alias, monkeypatch)
        yield scene
        proxy.heal()
        scene.clear(lambda: forget_errors(caplog))


def forget_errors(caplog: pytest.LogCaptureFixture) -> None:
    """Their tracebacks hold pools and channels, which close a connection when they are gone."""
    caplog.get_records("call").clear()
    caplog.clear()
    gc.collect()


@pytest.fixture
def move(scene: Scene) -> Iterator[Callable[[float], None]]:
    """Moves the wall clock of the scene's server, until the test ends."""
    start = scene.server.clock_offset
    yield lambda seconds: scene.server.shift_clock(start + seconds)
    if scene.server.name != "firestore":  # whose time goes forward only
        scene.server.shift_clock(start)


# The connection


@pytest.mark.parametrize("orderly", [False, True], ids=["reset", "closed"])
@on(*SESSIONS)
def test_a_session_that_ends_is_a_loss(scene: Scene, *, orderly: bool) -> None:
    """It is never replaced by a new one, which would hold nothing."""
    room = scene.room()
    handle = scene.obtain(room)
    began = time.monotonic()
    scene.proxy.cut(orderly=orderly)
    scene.lost(handle, began)
    scene.taken_over(handle)
    assert scene.obtain(room).release()


@pytest.mark.parametrize("orderly", [False, True], ids=["reset", "closed"])
@on(*TABLES, *STORES)
def test_a_lease_outlives_its_connection(scene: Scene, *, orderly: bool) -> None:
    """The owner's id is the proof, over whatever connection."""
    handle = scene.steady()
    scene.proxy.cut(orderly=orderly)
    scene.kept(handle)


@on(*SESSIONS, *TABLES, "dynamodb", "firestore")
def test_nothing_passes_any_more(scene: Scene) -> None:
    """The holder knows it by its own clock; the server frees the lock by its own."""
    handle = scene.obtain(scene.room())
    began = time.monotonic()
    with scene.proxy.blackhole():
        scene.lost(handle, began)
        scene.taken_over(handle)


@on(*SESSIONS, *TABLES, *STORES)
def test_answers_are_late_by_half_a_lease(scene: Scene) -> None:
    handle = scene.steady()
    with scene.proxy.freeze():
        assert not handle.wait_lost(STEADY / 2)
    scene.kept(handle)


@on(*TABLES, "mongodb", "dynamodb", "firestore")
def test_a_lease_outlives_an_outage_of_half_of_it(scene: Scene) -> None:
    """Case 069."""
    handle = scene.steady()
    with scene.proxy.down():
        assert not handle.wait_lost(handle.backend.lease / 2)
    scene.kept(handle)


@on(*SESSIONS)
def test_a_session_does_not_outlive_an_outage(scene: Scene) -> None:
    """Nobody holds on the strength of a session that came after it."""
    room = scene.room()
    handle = scene.obtain(room)
    began = time.monotonic()
    with scene.proxy.down():
        scene.lost(handle, began)
        with pytest.raises(LockUnavailable):
            room.obtain(scene.resource)
    scene.taken_over(handle)
    assert scene.obtain(room).release()


# Answers that got lost


@on(*SESSIONS)
def test_the_answer_to_obtain_is_lost(scene: Scene) -> None:
    """With its session the server ended whatever it had granted; the lock is taken anew."""
    room = scene.room(lease=STEADY)
    assert scene.obtain(room).release()
    scene.proxy.truncate_reply(request=scene.subject.requests["obtain"])
    handle = scene.obtain(room)
    assert scene.proxy.wait_struck()
    scene.kept(handle)


@on(*TABLES)
def test_the_answer_to_the_grant_of_a_lease_is_lost(scene: Scene) -> None:
    """Nobody knows of it, and it runs out."""
    room = scene.room()
    assert scene.obtain(room).release()
    scene.proxy.truncate_reply(request=scene.subject.requests["obtain"])
    with pytest.raises(LockUnavailable):
        room.obtain(scene.resource)
    assert scene.proxy.wait_struck()
    successor = scene.obtain(scene.rival(), timeout=scene.subject.lease + MARGIN)
    assert successor.token == 3
    assert successor.release()
    scene.settle()
    assert scene.losses == []


@on(*SESSIONS)
def test_the_answer_to_a_heartbeat_is_lost(scene: Scene) -> None:
    """The session may live on at the server, and is not used again."""
    handle = scene.obtain(scene.room())
    began = time.monotonic()
    scene.proxy.truncate_reply(request=scene.subject.requests["renew"])
    assert scene.proxy.wait_struck()
    scene.lost(handle, began)
    scene.taken_over(handle)


@on(*TABLES)
def test_the_answer_to_a_renewal_is_lost(scene: Scene) -> None:
    """It says nothing: the next proof tells."""
    handle = scene.steady()
    scene.proxy.truncate_reply(request=scene.subject.requests["renew"])
    assert scene.proxy.wait_struck()
    scene.kept(handle)


@on(*SESSIONS, *TABLES)
def test_the_answer_to_a_release_is_lost(scene: Scene) -> None:
    """The next one has it at once. A session's end is told, for nobody can know what it did."""
    handle = scene.obtain(scene.room(lease=UNHURRIED))
    scene.proxy.truncate_reply(request=scene.subject.requests["release"])
    assert handle.release() is not scene.subject.session
    assert scene.proxy.wait_struck()
    assert scene.obtain(scene.rival(), timeout=1 + MARGIN).release()  # the lease is far longer
    if scene.subject.session:
        scene.told_once(handle)
    scene.settle()
    assert len(scene.losses) == scene.subject.session


# The server


@on("mariadb", "mysql")
def test_a_server_that_was_killed_has_forgotten_its_sessions(scene: Scene) -> None:
    handle = scene.obtain(scene.room())
    began = time.monotonic()
    scene.crash()
    scene.lost(handle, began)
    scene.taken_over(handle)


@on(*TABLES, "dynamodb")
def test_a_server_that_was_killed_still_has_the_lease(scene: Scene) -> None:
    handle = scene.obtain(scene.room(lease=2 * UNHURRIED))
    scene.crash()
    scene.kept(handle)


# The server's wall clock

BOTH_WAYS = pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "behind"])
MOVABLE = [*SESSIONS, *TABLES, "redis", "mongodb", "dynamodb", "dynamodb-moto", "azure"]


@BOTH_WAYS
@on(*MOVABLE)
def test_the_clock_is_wrong_while_free(
    scene: Scene, move: Callable[[float], None], step: float
) -> None:
    """A lease is a period, wherever the clock stands."""
    move(step)
    scene.kept(scene.steady())


@on("firestore")
def test_the_clock_is_ahead_while_free(scene: Scene, move: Callable[[float], None]) -> None:
    """A lease is a period, wherever the clock stands; this one's time never goes back."""
    move(HOUR)
    scene.kept(scene.steady())


@BOTH_WAYS
@on(*MOVABLE)
def test_the_clock_is_moved_while_held(
    scene: Scene, move: Callable[[float], None], step: float
) -> None:
    """Of two, one holds, and who does not knows it."""
    handle = scene.steady()
    move(step)
    successor = scene.rival().obtain(scene.resource, timeout=1)
    if successor is None:
        scene.kept(handle)
    else:
        scene.followed(handle, successor)


@BOTH_WAYS
@on("mariadb", "mysql", *TABLES, "mongodb", "dynamodb")
def test_the_clock_is_moved_over_a_dead_holder(
    scene: Scene, move: Callable[[float], None], step: float
) -> None:
    """Nobody waits for an hour: what ends more than two leases ahead has ended."""
    handle = scene.obtain(scene.room())
    with scene.proxy.blackhole():
        move(step)
        scene.taken_over(handle)


@on("postgresql", "redis", "azure", "firestore")
def test_the_clock_goes_ahead_over_a_dead_holder(
    scene: Scene, move: Callable[[float], None]
) -> None:
    handle = scene.obtain(scene.room())
    with scene.proxy.blackhole():
        move(HOUR)
        scene.taken_over(handle)


@on("postgresql", *TABLES, "redis")
def test_the_clock_goes_back_a_little_over_a_dead_holder(
    scene: Scene, move: Callable[[float], None]
) -> None:
    """These follow their server's clock: it takes as much longer as the clock was set back."""
    back = 0.75 * scene.subject.lease
    handle = scene.obtain(scene.room())
    with scene.proxy.blackhole():
        move(-back)
        assert scene.rival().obtain(scene.resource) is None
        scene.taken_over(handle, back)
