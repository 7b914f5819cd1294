"""Drain a full outbox on PostgreSQL: the sweeper against a hand-written psycopg loop.

Both read whole messages in pages of 1,000, publish them nowhere and mark them in one transaction
a page. Rounds alternate; the ratio of the medians counts. Then the statements of 20 full pages are
counted by the server's own log, everything included: lock, fence, BEGIN and COMMIT.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from benchmarks import project
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


PAGE = 1000
BODY = b"x" * 300
COUNTED_PAGES = 20
READ = (
    "SELECT id, message_id, topic, key, body, content_type, headers, correlation_id, causation_id, "
    "created_at, attempts FROM django_outbox_lock_outboxmessage "
    "WHERE due_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint "
    "ORDER BY due_at, id LIMIT %s"
)
MARK = (
    "UPDATE django_outbox_lock_outboxmessage SET state = 20, due_at = NULL, "
    "settled_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, "
    "attempts = attempts + 1 WHERE id = ANY(%s)"
)


def fill(count: int, keys: int) -> None:
    """An outbox of ``count`` messages, spread over ``keys`` keys (0: none has a key)."""
    from django.db import connection, transaction

    from django_outbox_lock import Draft, publish_many
    from django_outbox_lock.models import OutboxMessage

    OutboxMessage.objects.all().delete()
    drafts = [Draft("bench", BODY, key=f"k{i % keys}" if keys else None) for i in range(count)]
    with transaction.atomic():
        publish_many(drafts)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE django_outbox_lock_outboxmessage")


def drain_raw(url: str) -> None:
    """The loop that somebody would write by hand for this one job."""
    import psycopg

    with psycopg.connect(url) as connection:
        while True:
            rows = connection.execute(READ, [PAGE]).fetchall()
            connection.commit()
            if not rows:
                return
            connection.execute(MARK, [[row[0] for row in rows]])
            connection.commit()


def drain_swept() -> None:
    """One cycle of the sweeper, with a publisher that does nothing."""
    from django_outbox_lock.engines.sweeper import Sweeper

    Sweeper.from_settings("default", batch_size=PAGE, linger=0).tick()


def _left() -> int:
    from django_outbox_lock.models import OutboxMessage

    return OutboxMessage.objects.filter(due_at__isnull=False).count()


def compare(url: str, count: int, keys: int, rounds: int) -> tuple[float, float]:
    """Median messages a second of the raw loop and of the sweeper."""
    raw, swept = [], []
    for _ in range(rounds):
        fill(count, keys)
        raw.append(project.seconds(lambda: drain_raw(url)))
        fill(count, keys)
        swept.append(project.seconds(drain_swept))
        if _left():
            raise RuntimeError("The sweeper left messages behind; nothing was measured.")
    return count / project.median(raw), count / project.median(swept)


def statements(log: Iterable[str]) -> int:
    """Statements that the server was sent, by its own log."""
    return sum("LOG:  statement:" in line or "LOG:  execute" in line for line in log)


def count_statements(server: Any, keys: int) -> int:
    """Statements of one cycle over 20 full pages, everything counted."""
    fill(COUNTED_PAGES * PAGE, keys)
    server.execute("ALTER SYSTEM SET log_statement = 'all'")
    server.execute("SELECT pg_reload_conf()")
    before = len(server.log.read_text(errors="replace").splitlines())
    drain_swept()
    lines = server.log.read_text(errors="replace").splitlines()[before:]
    server.execute("ALTER SYSTEM SET log_statement = 'none'")
    server.execute("SELECT pg_reload_conf()")
    return statements(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    server = servers.get("postgresql")
    with project.database_url(server) as url:
        project.set_up(url)
        use_null_publisher()
        drain_swept()  # opens the lock's session and probes it, once in a process
        print(f"drain {options.count:,} messages of {len(BODY)} B, pages of {PAGE:,}")
        print(f"{'keys':>12}{'raw /s':>12}{'sweeper /s':>12}{'ratio':>8}{'statements/message':>20}")
        for keys, label in ((0, "none"), (options.count, "distinct"), (50, "50 hot")):
            raw, swept = compare(url, options.count, keys, options.rounds)
            sent = count_statements(server, keys) / (COUNTED_PAGES * PAGE)
            print(f"{label:>12}{raw:>12,.0f}{swept:>12,.0f}{swept / raw:>8.2f}{sent:>20.5f}")


def use_null_publisher() -> None:
    """Configure a publisher that accepts everything and keeps nothing."""
    from django.conf import settings
    from django.test.signals import setting_changed

    settings.OUTBOX_LOCK = {
        "default": {"PUBLISHERS": {"default": {"BACKEND": "benchmarks.null.NullPublisher"}}}
    }
    setting_changed.send(sender=None, setting="OUTBOX_LOCK", value=None, enter=True)


if __name__ == "__main__":
    main()
