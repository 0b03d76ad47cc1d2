"""Django's outbox on SQLite and a real PostgreSQL: the rows are those of txbridge_sqlalchemy, which a relay sends."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from unittest.mock import patch

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, transaction
from django.db.utils import DatabaseError
from django.test import RequestFactory, override_settings
from sqlalchemy import create_engine, inspect
from txbridge_sqlalchemy import create_outbox

from tests.support.django_work import configure_django
from tests.unit.connectors.test_sqlalchemy_outbox import WHOLE, waiting
from txbridge import Message, UsageError


@pytest.fixture
def engine(url):
    """The default database of Django, with the tables of the migrations."""
    made = create_engine(url)
    configure_django(made, "default")
    with override_settings(TXBRIDGE={}):
        call_command("migrate", "txbridge_django", verbosity=0)
        yield made
    connection.close()
    made.dispose()


@pytest.fixture
def outbox(engine):
    from txbridge_django import outbox

    return outbox


def test_a_relay_reads_what_was_added_in_the_order_of_the_calls(engine, outbox):
    with transaction.atomic():
        outbox.add(WHOLE)
        outbox.add(*(Message("t", f"{number}", f"{number}") for number in range(3)))
        outbox.add(Message("t", None))
    with transaction.atomic():
        outbox.add(Message("t", "last"))
    numbers = [Message("t", f"{number}", f"{number}") for number in range(3)]
    assert waiting(engine) == [WHOLE, *numbers, Message("t", None), Message("t", "last")]


def test_a_rollback_leaves_nothing(engine, outbox):
    def fail():
        with transaction.atomic():
            outbox.add(WHOLE, WHOLE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError):
            fail()
        outbox.add(Message("t", "after the savepoint"))
        assert waiting(engine) == []
    assert [message.value for message in waiting(engine)] == [b"after the savepoint"]


def test_a_commit_wakes_the_relay_if_the_settings_say_so(engine, outbox):
    def add(**setting):
        with override_settings(TXBRIDGE=setting), transaction.atomic():
            outbox.add(WHOLE)
            outbox.add(WHOLE, WHOLE)

    if connection.vendor == "sqlite":
        add(OUTBOX_NOTIFY=True)
    else:
        address = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(address, autocommit=True) as listening:
            listening.execute("LISTEN txbridge_outbox")
            add()
            assert list(listening.notifies(timeout=0)) == []
            add(OUTBOX_NOTIFY=True)
            assert [one.channel for one in listening.notifies(timeout=10, stop_after=1)] == ["txbridge_outbox"]
            assert list(listening.notifies(timeout=0)) == []
            add()
    assert waiting(engine) == [WHOLE] * (3 if connection.vendor == "sqlite" else 9)


def test_outside_of_atomic_nothing_is_written(engine, outbox):
    with pytest.raises(UsageError, match=r"outside of transaction\.atomic\(using='default'\)"):
        outbox.add(WHOLE)
    assert waiting(engine) == []


def test_no_row_of_a_message_that_cannot_be_sent(engine, outbox):
    with transaction.atomic():
        with pytest.raises(UsageError, match="cannot be a topic"):
            outbox.add(WHOLE, Message("no topic", b"v"))
        with pytest.raises(UsageError, match="check_immunity_time"):
            outbox.add(Message("t", b"v", check_immunity_time=5))
        with (
            override_settings(TXBRIDGE={"DATABASE": "x"}),
            pytest.raises(UsageError, match="names 'x', which is not in DATABASES"),
        ):
            outbox.add(WHOLE)
    assert waiting(engine) == []


def test_a_missing_table_is_the_error_of_the_database(engine, outbox):
    call_command("migrate", "txbridge_django", "0001", verbosity=0)
    assert "txbridge_outbox" not in inspect(engine).get_table_names()
    with pytest.raises(DatabaseError, match="txbridge_outbox"), transaction.atomic():
        outbox.add(WHOLE)


def layout_of(engine):
    """Columns, primary keys and indexes of the tables of an outbox."""
    found, layout = inspect(engine), []
    for table in ("txbridge_outbox", "txbridge_outbox_relay"):
        layout.append(found.get_pk_constraint(table)["constrained_columns"])
        layout += [(one["name"], str(one["type"]), one["nullable"]) for one in found.get_columns(table)]
        for one in found.get_indexes(table):
            where = str(one["dialect_options"][f"{engine.name}_where"])
            layout.append((one["name"], one["column_names"], one["unique"], where.strip("()").replace('"', "")))
    assert ("txbridge_outbox_due", ["deliver_at", "id"], False, "deliver_at IS NOT NULL") in layout
    return layout


def test_the_migrations_are_complete_and_take_over_the_tables_of_sqlalchemy(engine, outbox):
    call_command("makemigrations", "txbridge_django", check=True, dry_run=True, verbosity=0)
    migrated = layout_of(engine)
    call_command("migrate", "txbridge_django", "zero", verbosity=0)
    create_outbox(engine)
    assert layout_of(engine) == migrated
    call_command("migrate", "txbridge_django", fake_initial=True, verbosity=0)
    with transaction.atomic():
        outbox.add(WHOLE)
    assert waiting(engine) == [WHOLE]


@pytest.mark.usefixtures("engine")
def test_a_database_without_partial_indexes_is_no_reason_to_warn():
    from txbridge_django.models import OutboxEntry

    with patch.object(type(connection.features), "supports_partial_indexes", False):
        assert OutboxEntry.check(databases=["default"]) == []


@pytest.mark.usefixtures("engine")
def test_the_setting_of_a_project_without_a_producer_is_checked():
    from txbridge_django.conf import check_settings, check_transactions

    assert check_settings() == []
    assert check_transactions(databases=["default"]) == []
    with override_settings(TXBRIDGE={"DATABASE": "x"}):
        assert [error.msg for error in check_settings()] == [
            "TXBRIDGE['DATABASE'] names 'x', which is not in DATABASES"
        ]
        assert check_transactions(databases=["default"]) == []
    with patch.object(type(connection.features), "supports_transactions", False):
        assert check_transactions() == []
        (error,) = check_transactions(databases=["default"])
        assert error.id == "txbridge.E002"
        assert "DATABASES['default'] has no transactions" in error.msg
        with pytest.raises(SystemCheckError, match="has no transactions"):
            call_command("check", databases=["default"], stdout=StringIO())


@pytest.mark.usefixtures("engine")
def test_the_admin_lists_rows_without_bodies_and_changes_nothing(outbox):
    from django.contrib import admin
    from txbridge_django.models import OutboxEntry

    call_command("migrate", "contenttypes", verbosity=0)
    with transaction.atomic():
        outbox.add(
            Message("orders.placed", b"secret body", "customer 7", {"name": "secret header"}),
            Message("orders.paid", "é", b"\xfe\xff"),
            Message("orders.gone", None),
        )
    request = RequestFactory().get("/admin/txbridge_django/outboxentry/")
    request.user = SimpleNamespace(
        is_active=True, is_staff=True, pk=1, has_perm=lambda *_: True, has_module_perms=lambda _: True,
        get_short_name=lambda: "", get_username=lambda: "", has_usable_password=lambda: False,
    )  # fmt: skip
    ours = admin.site._registry[OutboxEntry]
    page = ours.changelist_view(request).render().content.decode()
    cells = [page.split(f"field-{name}")[1:] for name in ("topic", "shown_key", "age", "size")]
    shown = [[cell.partition(">")[2].partition("<")[0] for cell in column] for column in cells]
    assert shown[0] == ["orders.placed", "orders.paid", "orders.gone"]
    assert shown[1] == ["customer 7", "feff", "-"]
    assert all(0 <= float(age) < 600 for age in shown[2])
    assert shown[3] == ["11", "2", "0"]
    one = ours.changeform_view(request, str(OutboxEntry.objects.earliest("id").pk)).render().content.decode()
    assert "customer 7" in one
    assert "secret" not in page + one
    assert not ours.has_add_permission(request)
    assert not ours.has_change_permission(request)
    assert not ours.has_delete_permission(request)
    assert ours.has_view_permission(request)
