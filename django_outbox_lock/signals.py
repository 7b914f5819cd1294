"""Signals, sent with ``send_robust``: a receiver that raises is logged and stops nobody.

All of them have the backend's class as sender and carry ``resource`` and ``using``. In seconds are
``waited``, ``left`` and ``overrun``.

==================  ============================================  =================================
signal              sent                                          with
==================  ============================================  =================================
``lock_obtained``   when a resource was obtained                  ``handle``, ``token``, ``waited``
``lock_contended``  when a call of obtain found it busy, to the   ``backend``, ``waited``
                    end of its time-out
``lock_released``   when a resource was released                  ``handle``, ``token``
``lock_at_risk``    when less than a third of the lease is left   ``handle``, ``token``, ``left``
                    unproved; once until the next proof
``lock_lost``       when a lock was lost, once                    ``handle``, ``token``, ``reason``
``lock_left``       when the work under a lost lock has ended     ``handle``, ``token``,
                                                                  ``overrun``
``lock_forced``     when a holder was ended by force              ``token``, ``forced_by``
==================  ============================================  =================================

``lock_at_risk`` and ``lock_lost`` come on threads of their own. No receiver runs inside a
transaction that this package has opened.
"""

from __future__ import annotations

from django.dispatch import Signal

lock_obtained = Signal()
lock_contended = Signal()
lock_released = Signal()
lock_at_risk = Signal()
lock_lost = Signal()
lock_left = Signal()
lock_forced = Signal()
