"""A small site for tests; SITE_DATABASE and SITE_TASKS (JSON: the entry in TASKS) say what they are about."""

from __future__ import annotations

import json
import os

import django

SECRET_KEY = "site"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes", "django.contrib.auth", "onefold.django", "tests.frames.django_site",
    *(["django_tasks"] if django.VERSION < (6,) else []),
]  # fmt: skip
if os.environ.get("SITE_BARE"):
    INSTALLED_APPS.remove("onefold.django")
if os.environ.get("SITE_ADMIN"):
    INSTALLED_APPS += ["django.contrib.admin", "django.contrib.messages", "django.contrib.sessions"]
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
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
                ]
            },
        }
    ]
    ROOT_URLCONF = "tests.frames.django_site.urls"
    ALLOWED_HOSTS = ["testserver"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": json.loads(os.environ["SITE_DATABASE"])}
TASKS = {"default": {"BACKEND": "onefold.django.OnefoldBackend", **json.loads(os.environ["SITE_TASKS"])}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"django_tasks": {"level": "CRITICAL"}, "django.tasks": {"level": "CRITICAL"}},
}
if os.environ.get("SITE_LOG"):
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "loggers": {"django_tasks": {"handlers": ["console"]}, "django.tasks": {"handlers": ["console"]}},
    }
