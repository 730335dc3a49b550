"""Django: an order and its event are one transaction; a management command runs the consumer.

The database, with the schema in it (``pgqpy migrate``), is named by PGQPY_DSN. Run the ticker
(``pgqpy ticker``), then, from this directory::

    python manage.py migrate
    python manage.py confirm_orders
    python manage.py runserver
    curl --json '{"item": "book"}' localhost:8000/orders
    curl localhost:8000/orders/1
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
