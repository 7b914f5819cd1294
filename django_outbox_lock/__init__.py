"""A transactional outbox, distributed locks with fencing, and a processing log for Django.

This is the front door: application code imports from here, at any time, even at the top of the
``models.py`` of an app that is listed before this one.
"""

from __future__ import annotations
