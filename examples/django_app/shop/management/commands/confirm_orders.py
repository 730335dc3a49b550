"""``python manage.py confirm_orders``"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from ...consumers import Confirmer


class Command(BaseCommand):
    """Runs the consumer until SIGTERM or Ctrl-C, which it obeys after the batch it is at."""

    help = "Confirms orders, until it is stopped."

    def handle(self, *args: Any, **options: Any) -> None:
        Confirmer(settings.PGQPY_DSN).run()
