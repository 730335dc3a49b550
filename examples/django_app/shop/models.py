"""The table of orders."""

from django.db import models


class Order(models.Model):
    """An order."""

    item = models.TextField()
    confirmed = models.BooleanField(default=False)

    class Meta:
        db_table = "shop_order"
