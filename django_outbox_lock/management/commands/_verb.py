"""What the verbs of ``manage.py outbox`` have in common."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar

from django_outbox_lock.management.commands._engine import add_database

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django.core.management.base import OutputWrapper


class Verb(abc.ABC):
    """One verb: its arguments, and what it does with them."""

    name: ClassVar[str]
    help: ClassVar[str]

    def __init__(self, database: str, stdout: OutputWrapper) -> None:
        self.database = database
        self.stdout = stdout

    @classmethod
    def add_arguments(cls, parser: ArgumentParser) -> None:
        """The arguments of every verb."""
        add_database(parser, "Alias of the database whose outbox it is.")

    @abc.abstractmethod
    def run(self, options: dict[str, Any]) -> None:
        """Do it; raises ``CommandError`` with a sentence for a person."""
