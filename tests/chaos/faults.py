"""What goes wrong in a run, one fault after the other; each is over when its function returns."""

from __future__ import annotations

import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

from tests.servers.database import DatabaseServer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.chaos.crew import Crew
    from tests.chaos.setups import Stage
    from tests.servers import Server

# How to list the sessions of others, and how to end one.
_POSTGRESQL_CLIENTS = (
    "SELECT pid FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
_MYSQL_CLIENTS = (
    "SELECT id FROM information_schema.processlist WHERE user = 'root' AND id <> CONNECTION_ID()"
)
KILL = {
    "postgresql": (_POSTGRESQL_CLIENTS, "SELECT pg_terminate_backend({})"),
    "mariadb": (_MYSQL_CLIENTS, "KILL {}"),
    "mysql": (_MYSQL_CLIENTS, "KILL {}"),
    "redis": ("", ""),  # its clients are ended all at once
}


class Faults:
    """The faults that apply to a stage and its crew."""

    def __init__(self, stage: Stage, crew: Crew, chance: random.Random) -> None:
        self.counted: Counter[str] = Counter()
        self._stage, self._crew, self._chance = stage, crew, chance
        self._lease = stage.setup.lease
        # Servers that have sessions and can end them.
        self._sessions = [server for server in stage.servers if server.name in KILL]
        self._turn: list[Callable[[], None]] = []
        self._kinds: list[Callable[[], None]] = [self.stop_workers, self.stop_workers, self.kill]
        if stage.servers:
            self._kinds += [self.restart, self.cut, self.blackhole, self.freeze]
        if self._sessions:
            self._kinds += [self.kill_sessions, self.kill_sessions]

    @property
    def all_struck(self) -> bool:
        """Whether each kind has come at least once."""
        return {_name(kind) for kind in self._kinds} <= self.counted.keys()

    def strike(self) -> None:
        """One of them, each once before any comes again."""
        if not self._turn:
            self._turn = self._chance.sample(self._kinds, len(self._kinds))
        fault = self._turn.pop()
        fault()
        self.counted[_name(fault)] += 1

    def revive(self) -> None:
        """Start what has ended by itself: a connection that is reset can be the end of dynalite."""
        for server in self._stage.servers:
            if not server.running:
                server.start()
                self.counted["server ended by itself"] += 1

    def stop_workers(self) -> None:
        """SIGSTOP for longer than a lease, then SIGCONT."""
        stopped = self._crew.some(self._chance.randint(1, self._crew.size - 1))
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        time.sleep(self._lease * self._chance.uniform(1.1, 1.8))
        for process in stopped:
            process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        for process in self._crew.some(1):
            self._crew.replace(process)

    def kill_sessions(self) -> None:
        """On one server half of the sessions are ended from its side."""
        server = self._chance.choice(self._sessions)
        if not isinstance(server, DatabaseServer):
            _kill_redis_clients(server)
            return
        listing, kill = KILL[server.name]
        for (session,) in server.execute(listing):
            if self._chance.random() < 0.5:
                _unless_gone(server, kill.format(session))

    def restart(self) -> None:
        """A server is killed with SIGKILL and comes back."""
        server = self._chance.choice(self._stage.servers)
        server.kill()
        time.sleep(self._chance.uniform(0, self._lease))
        server.start()

    def cut(self) -> None:
        """All connections to one server are reset."""
        self._chance.choice(self._stage.proxies).cut()

    def blackhole(self) -> None:
        """Nothing passes for about a lease, and is lost."""
        with self._chance.choice(self._stage.proxies).blackhole():
            time.sleep(self._lease * self._chance.uniform(0.5, 1.5))

    def freeze(self) -> None:
        """Nothing passes for about a lease, and arrives late."""
        with self._chance.choice(self._stage.proxies).freeze():
            time.sleep(self._lease * self._chance.uniform(0.5, 1.5))


def _name(fault: Callable[[], None]) -> str:
    return fault.__name__.replace("_", " ")


def _kill_redis_clients(server: Server) -> None:
    import redis

    with redis.Redis.from_url(server.url) as client:
        client.client_kill_filter(_type="normal", skipme=True)


def _unless_gone(server: DatabaseServer, statement: str) -> None:
    """MySQL answers with an error when the session has ended by itself."""
    try:
        server.execute(statement)
    except Exception as error:  # each driver has its own
        if "1094" not in str(error):
            raise
