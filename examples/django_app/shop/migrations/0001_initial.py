"""The table, the queue, and the consumer, which has all events from here on, whenever it starts."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("item", models.TextField()),
                ("confirmed", models.BooleanField(default=False)),
            ],
            options={"db_table": "shop_order"},
        ),
        migrations.RunSQL(
            "select pgq.create_queue('orders')",
            reverse_sql="select pgq.drop_queue('orders')",
        ),
        migrations.RunSQL(
            "select pgq.register_consumer('orders', 'confirmer')",
            reverse_sql="select pgq.unregister_consumer('orders', 'confirmer')",
        ),
    )
