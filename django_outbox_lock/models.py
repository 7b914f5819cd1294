"""The tables. No foreign keys, no unique constraint on text that a user chose.

Times that are compared with a clock are microseconds since 1970 UTC by the server's clock;
times that are only shown are datetimes. Rows change state through the verbs of ``querysets``.
"""

from __future__ import annotations

import uuid

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_outbox_lock import querysets
from django_outbox_lock.indexes import NotEmptyIndex, NotNullIndex
from django_outbox_lock.querysets import states


class ImmutableMessage(models.Model):
    """The columns of a message that never change once it is written."""

    message_id = models.UUIDField(_("message id"), unique=True, default=uuid.uuid4)
    topic = models.CharField(_("topic"), max_length=200)
    key = models.CharField(_("key"), max_length=255, null=True, blank=True)
    order_key = models.BigIntegerField(_("order key"), null=True, editable=False)
    slot = models.SmallIntegerField(_("slot"), editable=False)
    body = models.BinaryField(_("body"))
    content_type = models.CharField(_("content type"), max_length=100)
    headers = models.TextField(_("headers"))
    correlation_id = models.CharField(_("correlation id"), max_length=200, db_default="")
    causation_id = models.CharField(_("causation id"), max_length=200, db_default="")
    created_at = models.DateTimeField(_("created at"), default=timezone.now)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.topic} {self.message_id}"


class OutboxMessage(ImmutableMessage):
    """A message of the outbox; ``id`` is the order of writing.

    ``due_at`` is NULL for a settled row. A due time at or above ``querysets.PARKED`` is beyond any
    clock: the row is parked for a reason that is told by the number.
    """

    class State(models.IntegerChoices):
        OUTSTANDING = states.OUTSTANDING, _("outstanding")
        DISPATCHED = states.DISPATCHED, _("dispatched")
        DEAD = states.DEAD, _("dead")

    id = models.BigAutoField(primary_key=True)
    due_at = models.BigIntegerField(_("due at"), null=True)
    expires_at = models.BigIntegerField(_("expires at"), null=True)
    state = models.SmallIntegerField(
        _("state"), choices=State, default=State.OUTSTANDING, db_default=State.OUTSTANDING
    )
    attempts = models.IntegerField(_("attempts"), default=0, db_default=0)
    last_error = models.CharField(_("last error"), max_length=2000, default="", db_default="")
    settled_at = models.BigIntegerField(_("settled at"), null=True)
    dead_reason = models.CharField(_("dead reason"), max_length=100, default="", db_default="")

    objects = querysets.MessageQuerySet.as_manager()

    class Meta:
        verbose_name = _("outbox message")
        verbose_name_plural = _("outbox messages")
        default_permissions = ("view",)
        permissions = [
            ("requeue_outboxmessage", "Can requeue outbox messages"),
            ("kill_outboxmessage", "Can mark outbox messages dead"),
            ("view_message_body", "Can see the bodies of messages"),
        ]
        indexes = [
            NotNullIndex(fields=["due_at", "id"], name="outboxlock_due", not_null="due_at"),
            # With the state, for databases whose indexes hold the settled rows as well.
            NotNullIndex(
                fields=["order_key", "state", "id"], name="outboxlock_order", not_null="due_at"
            ),
            # The dead ones are few and looked for by people; no mark of a sent one touches it.
            NotEmptyIndex(
                fields=["dead_reason", "id"], name="outboxlock_dead", not_empty="dead_reason"
            ),
        ]


class ArchivedMessage(ImmutableMessage):
    """A dispatched message that the archiver has moved out of the outbox."""

    id = models.BigAutoField(primary_key=True)
    settled_at = models.BigIntegerField(_("settled at"))
    attempts = models.IntegerField(_("attempts"))
    archived_at = models.DateTimeField(_("archived at"), default=timezone.now)

    class Meta:
        verbose_name = _("archived message")
        verbose_name_plural = _("archived messages")
        default_permissions = ("view",)


class ProcessingLog(models.Model):
    """What a consumer has done with a message: its memory against a second delivery."""

    class Status(models.TextChoices):
        DONE = "done", _("done")
        FAILED = "failed", _("failed")

    id = models.BigAutoField(primary_key=True)
    entry_hash = models.CharField(_("entry hash"), max_length=64, unique=True)
    consumer = models.CharField(_("consumer"), max_length=200)
    key = models.CharField(_("key"), max_length=255)
    status = models.CharField(_("status"), max_length=10, choices=Status)
    attempts = models.IntegerField(_("attempts"), default=1, db_default=1)
    result = models.BinaryField(_("result"), null=True)
    result_type = models.CharField(_("result type"), max_length=100, default="", db_default="")
    body_digest = models.CharField(_("body digest"), max_length=64, default="", db_default="")
    last_error = models.CharField(_("last error"), max_length=2000, default="", db_default="")
    correlation_id = models.CharField(_("correlation id"), max_length=200, db_default="")
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    updated_at = models.DateTimeField(_("updated at"), default=timezone.now)

    objects = querysets.ProcessingLogQuerySet.as_manager()

    class Meta:
        verbose_name = _("processing log entry")
        verbose_name_plural = _("processing log")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.consumer}: {self.key}"


class Lock(models.Model):
    """Registry, fence and portable lease in one; a row per resource, never deleted.

    ``owner`` is the lock id of the holder, NULL when the resource is free: who held it last stays.
    ``backend`` is what arbitrates: the backend's name and its key in the store.
    """

    id = models.CharField(max_length=64, primary_key=True, editable=False)
    resource = models.CharField(_("resource"), max_length=255)
    token = models.BigIntegerField(_("fencing token"), default=0, db_default=0)
    owner = models.CharField(_("lock id"), max_length=32, null=True)
    backend = models.CharField(_("backend"), max_length=150, db_default="")
    host = models.CharField(_("host"), max_length=255, db_default="")
    pid = models.IntegerField(_("pid"), null=True)
    application = models.CharField(_("application"), max_length=200, db_default="")
    session_id = models.CharField(_("session"), max_length=64, db_default="")
    lease = models.BigIntegerField(_("lease"), null=True)
    acquired_at = models.BigIntegerField(_("obtained at"), null=True)
    expires_at = models.BigIntegerField(_("lease expires at"), null=True)
    last_seen_at = models.BigIntegerField(_("last seen at"), null=True)
    forced_by = models.CharField(_("forced by"), max_length=150, db_default="")
    forced_at = models.BigIntegerField(_("forced at"), null=True)

    class Meta:
        verbose_name = _("lock")
        verbose_name_plural = _("locks")
        default_permissions = ("view",)
        permissions = [("force_release_lock", "Can release a lock by force")]

    def __str__(self) -> str:
        return self.resource


class Hold(models.Model):
    """A key whose head message failed or died: the later messages of that key wait."""

    id = models.BigAutoField(primary_key=True)
    order_key = models.BigIntegerField(_("order key"), unique=True)
    head_id = models.BigIntegerField(_("head"))
    # The head that an earlier message of the key has displaced: it holds again after that one.
    later_head_id = models.BigIntegerField(_("later head"), null=True)
    since = models.DateTimeField(_("since"), default=timezone.now)
    reason = models.CharField(_("reason"), max_length=200, db_default="")

    objects = models.Manager.from_queryset(querysets.HoldQuerySet)()

    class Meta:
        verbose_name = _("hold")
        verbose_name_plural = _("holds")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.order_key} behind {self.head_id}"


class TopicState(models.Model):
    """The circuit breaker of a topic, shared by all replicas."""

    class Breaker(models.TextChoices):
        CLOSED = "closed", _("closed")
        OPEN = "open", _("open")
        HALF_OPEN = "half-open", _("half-open")

    id = models.CharField(max_length=64, primary_key=True, editable=False)
    topic = models.CharField(_("topic"), max_length=200)
    breaker = models.CharField(
        _("breaker"), max_length=10, choices=Breaker, default=Breaker.CLOSED, db_default="closed"
    )
    failures = models.IntegerField(_("failures in a row"), default=0, db_default=0)
    openings = models.IntegerField(_("openings in a row"), default=0, db_default=0)
    open_until = models.BigIntegerField(_("open until"), null=True)
    probe_id = models.BigIntegerField(_("last probe"), null=True)
    unroutable_since = models.BigIntegerField(_("without a route since"), null=True)
    last_error = models.CharField(_("last error"), max_length=2000, default="", db_default="")
    paused_at = models.DateTimeField(_("paused at"), null=True)
    paused_by = models.CharField(_("paused by"), max_length=150, db_default="")

    objects = models.Manager.from_queryset(querysets.TopicStateQuerySet)()

    class Meta:
        verbose_name = _("topic")
        verbose_name_plural = _("topics")
        default_permissions = ("view",)
        permissions = [("pause_topic", "Can pause a topic")]

    def __str__(self) -> str:
        return self.topic
