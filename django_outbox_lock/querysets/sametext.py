"""Texts that are the same to the character: to many collations "Order" and "order" are one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import F, Lookup

if TYPE_CHECKING:
    BooleanLookup = Lookup[bool]
else:
    BooleanLookup = Lookup

Compiled = tuple[str, tuple[Any, ...]]


class SameText(BooleanLookup):
    """True for the rows whose ``column`` is ``text``, with its case, accents and blanks.

    The column's own comparison stays beside it, for an index.
    """

    lookup_name = "same_text"
    prepare_rhs = False

    def __init__(self, column: str, text: str) -> None:
        super().__init__(F(column), text)

    def as_sql(self, compiler: Any, connection: Any) -> Compiled:
        return self._condition(compiler, "{column} = %s")

    def as_mysql(self, compiler: Any, connection: Any) -> Compiled:
        return self._bytes(compiler, "CAST(CONVERT({value} USING utf8mb4) AS BINARY)")

    as_tidb = as_mysql

    def as_microsoft(self, compiler: Any, connection: Any) -> Compiled:
        return self._bytes(compiler, "CONVERT(varbinary(max), CONVERT(nvarchar(max), {value}))")

    def _bytes(self, compiler: Any, conversion: str) -> Compiled:
        column, text = conversion.format(value="{column}"), conversion.format(value="%s")
        return self._condition(compiler, "({column} = %s", f" AND {column} = {text})")

    def _condition(self, compiler: Any, *tests: str) -> Compiled:
        sql, params = compiler.compile(self.lhs)
        parts = (test.format(column=sql) for test in tests)
        return "".join(parts), (*params, self.rhs) * len(tests)
