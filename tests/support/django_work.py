"""Django's transactions with the methods of SQLAlchemy that the scripts of tests/property/test_sql_scripts.py call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import django
import pymysql
from django.conf import settings
from django.db import Error, connections, models, transaction
from sqlalchemy import Engine, Executable, Table

from txbridge import LocalTransactionState, MessageExt

#: The base class of the errors of Django's databases.
DjangoError = Error
_ALIAS = "scripts"


class DjangoWork:
    """The connection of Django that the function of a message uses."""

    def __init__(self, engine: Engine, models_of: dict[str, Any]) -> None:
        self._dialect = engine.dialect
        self._models = models_of

    def execute(self, statement: Executable) -> None:
        compiled = statement.compile(dialect=self._dialect, compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
        with connections[_ALIAS].cursor() as cursor:
            cursor.execute(str(compiled))

    def save(self, table: Table, values: dict[str, Any]) -> None:
        """Insert a row with the ORM."""
        self._models[table.name](**values).save(using=_ALIAS, force_insert=True)

    def begin_nested(self) -> transaction.Atomic:
        """A savepoint: it begins at once, as SQLAlchemy's does."""
        return _Savepoint()

    def commit(self) -> None:
        transaction.commit(using=_ALIAS)

    def rollback(self) -> None:
        transaction.rollback(using=_ALIAS)

    def close(self) -> None:
        connections[_ALIAS].close()


class _Savepoint(transaction.Atomic):
    def __init__(self) -> None:
        super().__init__(_ALIAS, savepoint=True, durable=False)
        super().__enter__()

    def __enter__(self) -> None:
        pass

    def rollback(self) -> None:
        self.__exit__(Exception, None, None)


class DjangoListener:
    """DjangoTransactionListener on the database of an engine."""

    def __init__(self, engine: Engine, run: Callable[[Any, DjangoWork, MessageExt, Any], bool | None]) -> None:
        """`run` is called as `run(arg, work, message, arg)`."""
        configure_django(engine)
        from txbridge_django.listener import DjangoTransactionListener

        self._work = DjangoWork(engine, {"rows": _row_model()})
        self._listener = DjangoTransactionListener(_ALIAS, 0.3)
        self._run = run
        self.verify = self._listener.verify
        self.check_local_transaction = self._listener.check_local_transaction
        self.close = self._work.close

    def execute_local_transaction(self, message: MessageExt, arg: Any) -> LocalTransactionState:
        def function(placed: MessageExt, given: Any) -> bool | None:
            return self._run(given, self._work, placed, given)

        self._listener._function = function
        return self._listener.execute_local_transaction(message, arg)


def configure_django(engine: Engine, alias: str = _ALIAS) -> None:
    """Let the alias name the database of this engine."""
    if not settings.configured:
        apps = ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "txbridge_django"]
        processors = ["django.template.context_processors.request"]
        settings.configure(
            DATABASES={},
            INSTALLED_APPS=apps,
            LOGGING_CONFIG=None,
            USE_TZ=True,
            ROOT_URLCONF="tests.support.django_admin_urls",
            TEMPLATES=[
                {
                    "BACKEND": "django.template.backends.django.DjangoTemplates",
                    "APP_DIRS": True,
                    "OPTIONS": {"context_processors": processors},
                }
            ],
            STATIC_URL="static/",
        )
        django.setup()
    url = engine.url
    if engine.dialect.name == "sqlite":
        named = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database, "OPTIONS": {"timeout": 0.2}}
    elif engine.dialect.name == "mysql":
        pymysql.install_as_MySQLdb()
        named = {
            "ENGINE": "django.db.backends.mysql",
            "NAME": url.database,
            "USER": url.username,
            # PyMySQL takes 50 ms for each connection to read the certificates that it may need.
            "OPTIONS": {**url.query, "ssl_disabled": True},
        }
    else:
        named = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.database,
            "USER": url.username,
            "PASSWORD": url.password or "",
            "HOST": url.query.get("host") or url.host,
            "PORT": url.port or "",
            "OPTIONS": {"options": url.query["options"]},
        }
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: named})[alias]
    if hasattr(connections._connections, alias):
        del connections[alias]


def _row_model() -> Any:
    from django.apps import apps

    if "row" in apps.all_models["scripts"]:
        return apps.get_registered_model("scripts", "row")

    class Row(models.Model):
        id = models.IntegerField(primary_key=True)
        owner = models.CharField(max_length=32)

        class Meta:
            app_label = "scripts"
            db_table = "rows"
            managed = False

        def __str__(self) -> str:
            return f"{self.id}"

    return Row
