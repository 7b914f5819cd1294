"""Open the admin on the demonstration's data: ``python -m testproject.serve``."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import django

from testproject.demo.processes import FOLDER, ROOT, shop_environment

NAME = "admin"
PORT = 8000


def main() -> NoReturn:
    """Make a superuser ``admin`` with the password ``admin`` and serve on loopback only."""
    if not (FOLDER / "shop.sqlite3").exists():
        sys.exit("There is no data yet: run the demo first (python3 scripts/dev.py demo).")
    environment = shop_environment(PORT) | {"DEBUG": "1"}
    os.environ.update(environment)
    django.setup()
    _make_superuser()
    print(f"http://127.0.0.1:{PORT}/admin/  user {NAME}, password {NAME}", flush=True)
    os.chdir(ROOT)
    address = f"127.0.0.1:{PORT}"
    os.execv(sys.executable, [sys.executable, "manage.py", "runserver", "--noreload", address])


def _make_superuser() -> None:
    from django.contrib.auth.models import User

    if not User.objects.filter(username=NAME).exists():
        User.objects.create_superuser(NAME, password=NAME)


if __name__ == "__main__":
    main()
