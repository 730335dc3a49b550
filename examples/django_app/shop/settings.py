"""Settings of a project with one application."""

from __future__ import annotations

import os

import pgqpy.dsn

PGQPY_DSN = pgqpy.dsn.resolve()
_SETTINGS = pgqpy.dsn.parse(PGQPY_DSN)

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _SETTINGS.get("dbname"),
        "USER": _SETTINGS.get("user", ""),
        "PASSWORD": _SETTINGS.get("password", ""),
        "HOST": _SETTINGS.get("host", ""),
        "PORT": _SETTINGS.get("port", ""),
    }
}
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "an example has no secrets")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
