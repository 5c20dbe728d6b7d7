"""Settings of the shop; SHOP_DATABASE says where its database is."""

import os
import tempfile
from pathlib import Path

import django

SECRET_KEY = "only-for-this-example"
ALLOWED_HOSTS = ["localhost", "testserver"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
INSTALLED_APPS = [*(["django_tasks"] if django.VERSION < (6,) else []), "onefold.django", "shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", Path(__file__).parent / "db.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        "TEST": {"NAME": Path(tempfile.gettempdir()) / f"test-shop-{os.getpid()}.sqlite3"},  # a queue is not in memory
    }
}
TASKS = {
    "default": {
        "BACKEND": "onefold.django.OnefoldBackend",
        "OPTIONS": {"name": "shop", "adopt": True},  # the queue is in the database's own file
    }
}
