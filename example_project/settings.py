"""Settings of the example project and of the test suite.

Reading them starts nothing: the URL of the embedded server is computed, and
`make` or the test suite start the server. DATABASE_URL overrides it.
"""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import dj_database_url
import django
from django.core.exceptions import ImproperlyConfigured

from example_project import postgres

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = "for-development-only-not-a-secret-of-any-deployment"
DEBUG = os.environ.get("DJANGO_DEBUG", "1") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", "testserver"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "leasejobs",
    "example_project.market",
]
if django.VERSION < (6, 0):
    # The backport of django.tasks is an app of its own: its checks and signals.
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

# Shows our metrics and Django's own on /metrics. An extra: it does not go with every Django.
if find_spec("django_prometheus"):
    INSTALLED_APPS.append("django_prometheus")
    MIDDLEWARE = [
        "django_prometheus.middleware.PrometheusBeforeMiddleware",
        *MIDDLEWARE,
        "django_prometheus.middleware.PrometheusAfterMiddleware",
    ]

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": dj_database_url.parse(os.environ.get("DATABASE_URL") or postgres.url())}
if DATABASES["default"]["ENGINE"] != "django.db.backends.postgresql":
    raise ImproperlyConfigured(
        "DATABASE_URL must name a PostgreSQL database (postgres://…), "
        f"not {DATABASES['default']['ENGINE'] or 'an unknown one'}."
    )
# Environments of one tox run share a server; each has a test database of its own.
DATABASES["default"]["TEST"] = {
    "NAME": "_".join(
        filter(
            None,
            [
                "test",
                DATABASES["default"]["NAME"],
                re.sub(r"\W+", "_", os.environ.get("TOX_ENV_NAME", "")),
            ],
        )
    )
}

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TASKS = {"default": {"BACKEND": "leasejobs.backend.LeaseBackend"}}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": os.environ.get("LOG_LEVEL", "WARNING")},
}
