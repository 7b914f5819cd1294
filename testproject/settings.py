"""The project that the tests, the demo and the benchmarks run in.

Everything that differs between runs comes from the environment, so that any command and the
whole suite run against a given database: DATABASE_URL, SECOND_DATABASE_URL (the alias "other"),
BROKER_URL, CONSUMER_URL, DEBUG, TIME_ZONE, USE_TZ, DEFAULT_AUTO_FIELD, LOG_LEVEL, OUTBOX_LOCK
(JSON), and SQLITE_TEST_IN_MEMORY for the few tests that want SQLite's in-memory test database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import environ

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent
DEV_DIR = BASE_DIR / ".dev"

SECRET_KEY = "only-for-tests-and-the-demo"
DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_outbox_lock",
    "testproject.shop",
    "testproject.billing",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "testproject.urls"
STATIC_URL = "static/"

DEFAULT_DATABASE_URL = f"sqlite:///{DEV_DIR}/db.sqlite3"

# What each vendor needs beyond its URL; options given in the URL's query win.
VENDOR_OPTIONS: dict[str, dict[str, Any]] = {
    "django.db.backends.mysql": {"charset": "utf8mb4"},
    # NORMAL: a crash of the machine, not of a process, may undo the last commits.
    "django.db.backends.sqlite3": {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
    },
}


def database(name: str, default: str | None = None) -> dict[str, Any]:
    """The DATABASES entry for the URL in the environment variable *name*."""
    config: dict[str, Any] = env.db(name, default=default or env.NOTSET)
    config["OPTIONS"] = VENDOR_OPTIONS.get(config["ENGINE"], {}) | config.get("OPTIONS", {})
    if config["ENGINE"] == "django.db.backends.sqlite3":
        config["TEST"] = {"NAME": sqlite_test_name(config["NAME"])}
    return config


def sqlite_test_name(name: str) -> str | None:
    """A file, so that a test's threads and processes share one database; None for memory."""
    in_memory = name == ":memory:" or env.bool("SQLITE_TEST_IN_MEMORY", default=False)
    return None if in_memory else f"{name}.test"


if "DATABASE_URL" not in env:
    DEV_DIR.mkdir(exist_ok=True)

DATABASES = {"default": database("DATABASE_URL", DEFAULT_DATABASE_URL)}
if "SECOND_DATABASE_URL" in env:
    DATABASES["other"] = database("SECOND_DATABASE_URL")

DEFAULT_AUTO_FIELD = env.str("DEFAULT_AUTO_FIELD", default="django.db.models.BigAutoField")

OUTBOX_LOCK: dict[str, Any] = env.json("OUTBOX_LOCK", default={})
BROKER_URL: str | None = env.str("BROKER_URL", default=None)
CONSUMER_URL = env.str("CONSUMER_URL", default="http://127.0.0.1:8001/billing/messages/")

USE_TZ = env.bool("USE_TZ", default=True)
TIME_ZONE = env.str("TIME_ZONE", default="UTC")
LANGUAGE_CODE = "en"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {"django_outbox_lock": {"level": env.str("LOG_LEVEL", default="INFO")}},
}
