"""The outbox tables in a PostgreSQL database, for tasks that are enqueued in its transactions.

Never here: SQL that creates tables; it is in `engines/postgres/outbox.py`. Invariant: on other databases it does
nothing.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from onefold.contracts.outbox import VERSION


def create(_apps: Any, schema_editor: Any) -> None:
    """Create the tables; those that `onefold outbox create` has made are kept."""
    if schema_editor.connection.vendor == "postgresql":
        from onefold.engines.postgres.outbox import SQL  # needs psycopg 3

        schema_editor.execute(SQL)


def drop(_apps: Any, schema_editor: Any) -> None:
    """Drop the tables, unless messages wait in them."""
    if schema_editor.connection.vendor != "postgresql":
        return
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM onefold_outbox")
        (waiting,) = cursor.fetchone()
    if waiting:
        raise RuntimeError(f"onefold_outbox has {waiting} messages: run a worker first. Nothing was dropped.")
    schema_editor.execute("DROP TABLE onefold_outbox, onefold_outbox_version")


class Migration(migrations.Migration):  # type: ignore[misc]  # Django ships no types
    """Version 1 of the tables."""

    assert VERSION == 1, "a new version of the tables needs a new migration"
    initial = True
    dependencies: list[Any] = []
    operations = [
        migrations.RunPython(create, drop),
        migrations.CreateModel(
            name="Jobs",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))
            ],
            options={
                "verbose_name": "jobs",
                "verbose_name_plural": "jobs",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
