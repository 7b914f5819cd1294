--
-- Create model ArchivedMessage
--
CREATE TABLE [django_outbox_lock_archivedmessage] ([message_id] char(32) NOT NULL UNIQUE, [topic] nvarchar(200) NOT NULL, [key] nvarchar(255) NULL, [order_key] bigint NULL, [slot] smallint NOT NULL, [body] varbinary(max) NOT NULL, [content_type] nvarchar(100) NOT NULL, [headers] nvarchar(max) NOT NULL, [correlation_id] nvarchar(200) DEFAULT '' NOT NULL, [causation_id] nvarchar(200) DEFAULT '' NOT NULL, [created_at] datetimeoffset NOT NULL, [id] bigint NOT NULL PRIMARY KEY IDENTITY (1, 1), [settled_at] bigint NOT NULL, [attempts] int NOT NULL, [archived_at] datetimeoffset NOT NULL);
--
-- Create model Hold
--
CREATE TABLE [django_outbox_lock_hold] ([id] bigint NOT NULL PRIMARY KEY IDENTITY (1, 1), [order_key] bigint NOT NULL UNIQUE, [head_id] bigint NOT NULL, [later_head_id] bigint NULL, [since] datetimeoffset NOT NULL, [reason] nvarchar(200) DEFAULT '' NOT NULL);
--
-- Create model Lock
--
CREATE TABLE [django_outbox_lock_lock] ([id] nvarchar(64) NOT NULL PRIMARY KEY, [resource] nvarchar(255) NOT NULL, [token] bigint DEFAULT 0 NOT NULL, [owner] nvarchar(32) NULL, [backend] nvarchar(150) DEFAULT '' NOT NULL, [host] nvarchar(255) DEFAULT '' NOT NULL, [pid] int NULL, [application] nvarchar(200) DEFAULT '' NOT NULL, [session_id] nvarchar(64) DEFAULT '' NOT NULL, [lease] bigint NULL, [acquired_at] bigint NULL, [expires_at] bigint NULL, [last_seen_at] bigint NULL, [forced_by] nvarchar(150) DEFAULT '' NOT NULL, [forced_at] bigint NULL);
--
-- Create model ProcessingLog
--
CREATE TABLE [django_outbox_lock_processinglog] ([id] bigint NOT NULL PRIMARY KEY IDENTITY (1, 1), [entry_hash] nvarchar(64) NOT NULL UNIQUE, [consumer] nvarchar(200) NOT NULL, [key] nvarchar(255) NOT NULL, [status] nvarchar(10) NOT NULL, [attempts] int DEFAULT 1 NOT NULL, [result] varbinary(max) NULL, [result_type] nvarchar(100) DEFAULT '' NOT NULL, [body_digest] nvarchar(64) DEFAULT '' NOT NULL, [last_error] nvarchar(2000) DEFAULT '' NOT NULL, [correlation_id] nvarchar(200) DEFAULT '' NOT NULL, [created_at] datetimeoffset NOT NULL, [updated_at] datetimeoffset NOT NULL);
--
-- Create model TopicState
--
CREATE TABLE [django_outbox_lock_topicstate] ([id] nvarchar(64) NOT NULL PRIMARY KEY, [topic] nvarchar(200) NOT NULL, [breaker] nvarchar(10) DEFAULT 'closed' NOT NULL, [failures] int DEFAULT 0 NOT NULL, [openings] int DEFAULT 0 NOT NULL, [open_until] bigint NULL, [probe_id] bigint NULL, [unroutable_since] bigint NULL, [last_error] nvarchar(2000) DEFAULT '' NOT NULL, [paused_at] datetimeoffset NULL, [paused_by] nvarchar(150) DEFAULT '' NOT NULL);
--
-- Create model OutboxMessage
--
CREATE TABLE [django_outbox_lock_outboxmessage] ([message_id] char(32) NOT NULL UNIQUE, [topic] nvarchar(200) NOT NULL, [key] nvarchar(255) NULL, [order_key] bigint NULL, [slot] smallint NOT NULL, [body] varbinary(max) NOT NULL, [content_type] nvarchar(100) NOT NULL, [headers] nvarchar(max) NOT NULL, [correlation_id] nvarchar(200) DEFAULT '' NOT NULL, [causation_id] nvarchar(200) DEFAULT '' NOT NULL, [created_at] datetimeoffset NOT NULL, [id] bigint NOT NULL PRIMARY KEY IDENTITY (1, 1), [due_at] bigint NULL, [expires_at] bigint NULL, [state] smallint DEFAULT 10 NOT NULL, [attempts] int DEFAULT 0 NOT NULL, [last_error] nvarchar(2000) DEFAULT '' NOT NULL, [settled_at] bigint NULL, [dead_reason] nvarchar(100) DEFAULT '' NOT NULL);
CREATE INDEX [outboxlock_dead] ON [django_outbox_lock_outboxmessage] ([dead_reason], [id]) WHERE [dead_reason] > ('');
CREATE INDEX [outboxlock_due] ON [django_outbox_lock_outboxmessage] ([due_at], [id]) WHERE [due_at] IS NOT NULL;
CREATE INDEX [outboxlock_order] ON [django_outbox_lock_outboxmessage] ([order_key], [state], [id]) WHERE [due_at] IS NOT NULL;
