"""The table."""

from django.db import models


class Order(models.Model):
    """Something that somebody wants."""

    item = models.TextField()
    confirmed = models.BooleanField(default=False)

    class Meta:
        db_table = "shop_order"
