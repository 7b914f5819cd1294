"""What the verbs of ``manage.py outbox`` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.db import connections

from django_outbox_lock.conf import DEFAULT_ALIAS

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django.core.management.base import OutputWrapper


class Verb:
    """One verb: its arguments, and what it does with them."""

    name: ClassVar[str]
    help: ClassVar[str]

    def __init__(self, database: str, stdout: OutputWrapper) -> None:
        self.database = database
        self.stdout = stdout

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        """The arguments of every verb."""
        parser.add_argument(
            "--database",
            default=DEFAULT_ALIAS,
            choices=tuple(connections),
            help="Alias of the database whose outbox it is. Default: %(default)s.",
        )

    def run(self, options: dict[str, Any]) -> None:
        """Do it; raises ``CommandError`` with a sentence for a person."""
        raise NotImplementedError
