"""`scripts/dev.py chaos`: processes obtain, write and release while all goes wrong round them.

Each backend runs until so many acquisitions were made and each kind of fault has struck. Then the
checker looks at the history.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests import servers
from tests.chaos.crew import CREDENTIALS, Crew
from tests.chaos.faults import Faults
from tests.chaos.history import History, violations
from tests.chaos.setups import ALL, SETUPS, stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.setups import Stage

WORKERS = 4
# Without an acquisition for so many leases outside of a fault somebody holds for ever.
PATIENCE = 20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/dev.py chaos", description=__doc__)
    parser.add_argument(
        "--backend",
        action="append",
        choices=SETUPS,
        help="repeatable; default: all but the negative controls",
    )
    parser.add_argument("--acquisitions", type=int, default=10_000, help="(default: 10,000)")
    parser.add_argument(
        "--seed", type=int, help="of the faults and the workers; default: by chance"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends workers and servers, too
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}, {WORKERS} workers", flush=True)
    names = options.backend or ALL
    if len(names) == 1:
        return run(names[0], options.acquisitions, seed)
    # Django's settings are read once in a process.
    return max(_elsewhere(name, options.acquisitions, seed) for name in names)


def _elsewhere(name: str, acquisitions: int, seed: int) -> int:
    options = ["--backend", name, "--acquisitions", str(acquisitions), "--seed", str(seed)]
    with subprocess.Popen([sys.executable, "-m", "tests.chaos.run", *options]) as process:
        try:
            return process.wait()
        finally:
            process.terminate()


def run(name: str, acquisitions: int, seed: int) -> int:
    """One backend; returns the exit status."""
    try:
        with stage(SETUPS[name]) as built, tempfile.TemporaryDirectory() as folder:
            _set_up(built)
            crew = Crew(built, Path(folder), WORKERS, seed)
            faults = Faults(built, crew, random.Random(seed))
            begin = time.monotonic()
            history = _rage(crew, faults, acquisitions, built.setup.lease)
            seconds = time.monotonic() - begin
    except servers.ServerMissing as missing:
        print(f"{name}: not exercised: {missing}", flush=True)
        return 0
    return _report(name, history, faults, seconds)


def _set_up(built: Stage) -> None:
    os.environ |= {
        "DATABASE_URL": built.database_url,
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        **CREDENTIALS,
    }
    import django
    from django.core.management import call_command
    from django.utils.module_loading import import_string

    django.setup()
    from tests.chaos import ledger

    call_command("migrate", "django_outbox_lock", verbosity=0)
    ledger.create()
    if built.setup.store is not None:
        room = import_string(built.setup.backend)("default", **built.options)
        room.provision()
        room.close()


def _rage(crew: Crew, faults: Faults, acquisitions: int, lease: float) -> History:
    """Let the crew work, with pauses between the faults shorter and longer than a lease."""
    chance = random.Random(acquisitions)
    with crew:
        try:
            made, since = 0, time.monotonic()
            while made < acquisitions or not faults.all_struck:
                time.sleep(lease * chance.uniform(0.2, 2.0))
                crew.check()
                faults.revive()
                before, made = made, crew.obtained()
                if made > before:
                    since = time.monotonic()
                    faults.strike()
                elif time.monotonic() - since > PATIENCE * lease:
                    raise RuntimeError(f"Nobody has obtained anything for {PATIENCE:g} leases.")
            crew.end()
        except BaseException:
            print(crew.errors(), file=sys.stderr)
            raise
    return _collected(crew)


def _collected(crew: Crew) -> History:
    from django.db import connection

    from tests.chaos import ledger

    history = crew.history()
    connection.close()  # it may be one that a fault has ended
    history.writes = ledger.writes()
    connection.close()
    return history


def _report(name: str, history: History, faults: Faults, seconds: float) -> int:
    made = history.acquisitions
    found = violations(history)
    kept, lost = sum(each.held is True for each in made), sum(each.losses > 0 for each in made)
    struck = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.counted.items()))
    print(
        f"{name}: {len(made):,} acquisitions in {seconds:.0f} s ({len(made) / seconds:.0f}/s), "
        f"{kept:,} held to their end, {lost:,} losses told, {len(history.writes):,} writes "
        f"accepted\n  faults: {struck or 'none'}\n  broken promises: {len(found)}"
    )
    for what in found[:20]:
        print(f"    {what}")
    sys.stdout.flush()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
