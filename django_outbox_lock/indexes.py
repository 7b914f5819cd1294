"""An index over the rows of one kind where the database can, over all rows elsewhere."""

from __future__ import annotations

import copy
from typing import Any

from django.db.models import Index, Q


class NotNullIndex(Index):
    """Index of the rows whose field ``not_null`` is not NULL.

    ``Index(condition=...)`` would bring a models warning on databases without partial indexes;
    correctness never depends on the condition, so here such databases just get the whole index.
    """

    def __init__(self, *expressions: Any, not_null: str, **kwargs: Any) -> None:
        super().__init__(*expressions, **kwargs)
        self.not_null = not_null

    def deconstruct(self) -> Any:
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "not_null": self.not_null}

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **kwargs: Any) -> Any:
        index = self
        if schema_editor.connection.features.supports_partial_indexes:
            index = copy.copy(self)
            index.condition = Q(**{f"{self.not_null}__isnull": False})
        return super(NotNullIndex, index).create_sql(model, schema_editor, using=using, **kwargs)
