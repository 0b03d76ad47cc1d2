"""Migration that creates the table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates the table. If txbridge_sqlalchemy has created it already, run `migrate --fake-initial`."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Transaction",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("state", models.CharField(max_length=16)),
                ("created_at", models.BigIntegerField()),
            ],
            options={"db_table": "txbridge_transactions"},
        ),
        migrations.AddIndex(
            model_name="transaction", index=models.Index(fields=["created_at"], name="txbridge_tx_created_at")
        ),
    )
