"""An index over the rows of one kind where the database can, over all rows elsewhere.

``Index(condition=...)`` would bring a models warning on databases without partial indexes;
correctness never depends on the condition, so here such databases just get the whole index.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from django.db.models import CharField, Func, Index, Q

# A literal: a server that plans without the parameters could not match it with the condition.
EMPTY = Func(template="''", output_field=CharField())


class _PartialIndex(Index):
    """``chosen_by`` is the argument that names the field which decides about a row."""

    chosen_by: ClassVar[str]

    def rows(self) -> Q:
        """The rows that the index is for."""
        raise NotImplementedError

    def deconstruct(self) -> Any:
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, self.chosen_by: getattr(self, self.chosen_by)}

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **kwargs: Any) -> Any:
        index = self
        if schema_editor.connection.features.supports_partial_indexes:
            index = copy.copy(self)
            index.condition = self.rows()
        return super(_PartialIndex, index).create_sql(model, schema_editor, using=using, **kwargs)


class NotNullIndex(_PartialIndex):
    """Index of the rows whose field ``not_null`` is not NULL."""

    chosen_by = "not_null"

    def __init__(self, *expressions: Any, not_null: str, **kwargs: Any) -> None:
        super().__init__(*expressions, **kwargs)
        self.not_null = not_null

    def rows(self) -> Q:
        return Q(**{f"{self.not_null}__isnull": False})


class NotEmptyIndex(_PartialIndex):
    """Index of the rows whose text field ``not_empty`` is not the empty string."""

    chosen_by = "not_empty"

    def __init__(self, *expressions: Any, not_empty: str, **kwargs: Any) -> None:
        super().__init__(*expressions, **kwargs)
        self.not_empty = not_empty

    def rows(self) -> Q:
        return Q(**{f"{self.not_empty}__gt": EMPTY})
