"""The consumer of the demonstration: a service of its own, with a database of its own."""

from __future__ import annotations
