"""Faust in a worker: the requests of its consumer, what it tells the owners, and its settings."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from faust.types.settings import Settings

from txbridge.config.foreign_variables import forget_foreign_variables, is_foreign
from txbridge.config.worker import WorkerSettings
from txbridge.worker.app import BridgeApp, create_app
from txbridge.worker.faust import settings
from txbridge.worker.faust import settings as faust_settings
from txbridge.worker.faust.settings import METADATA_PAUSE_S, TolerantConsumer, pace_fetches, pace_metadata


def test_between_two_questions_there_is_a_pause_also_after_one_that_failed() -> None:
    asked: list[float] = []

    async def ask(*arguments: Any) -> Any:
        asked.append(time.monotonic())
        if len(asked) == 2:
            raise OSError("nobody answers")
        return arguments

    async def ask_thrice() -> Any:
        client = SimpleNamespace(_metadata_update=ask)
        pace_metadata(client)
        await client._metadata_update("cluster", "topics")
        with contextlib.suppress(OSError):
            await client._metadata_update("cluster", "topics")
        return await client._metadata_update("cluster", "topics")

    assert asyncio.run(ask_thrice()) == ("cluster", "topics")
    first, second, third = asked
    assert second - first >= METADATA_PAUSE_S
    assert third - second >= METADATA_PAUSE_S


def test_a_fetch_rests_after_an_answer_with_records_of_the_same_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    now, rests = [1_000.0], list[float]()
    fetch = FetchRequest(1_500, 1, 1_000, 1, [])

    async def rest(seconds: float) -> None:
        rests.append(round(seconds, 3))
        now[0] += seconds

    async def send(*_arguments: Any, **_options: Any) -> None:
        now[0] += 0.01

    async def send_all() -> None:
        client = SimpleNamespace(send=send)
        pace_fetches(client, 0.05)
        for node in (1, 2, 1):
            await client.send(node, fetch)
        await client.send(1, MetadataRequest([]), group="coordination")
        # The broker has waited for records as long as it may: a quiet time, after which a record is not delayed.
        monkeypatch.setattr(settings, "_FETCH_WAIT_S", 0.005)
        for _ in range(2):
            await client.send(1, fetch)

    monkeypatch.setattr(settings.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(settings.asyncio, "sleep", rest)
    asyncio.run(send_all())
    assert rests == [0.0, 0.0, 0.04, 0.04, 0.0]


def test_while_the_group_rebalances_faust_reads_nothing_next() -> None:
    partition, offsets = TopicPartition("END", 0), list[int | None]()

    async def rebalance() -> None:
        state = SubscriptionState()
        reader: Any = SimpleNamespace(_thread=SimpleNamespace(_consumer=SimpleNamespace(_subscription=state)))

        def note_next() -> None:
            offsets.append(TolerantConsumer.next_offset(reader, partition))

        note_next()
        state.subscribe({"END"})
        note_next()
        for offset in (5, 7):
            state.assign_from_subscribed({partition})
            note_next()
            state.seek(partition, offset)
            note_next()
            state.begin_reassignment()
            note_next()

    asyncio.run(rebalance())
    assert offsets == [None, None, None, 5, None, None, 7, None]


def test_when_a_rebalance_begins_the_owners_read_end_themselves() -> None:
    missed: list[str] = []
    app = create_app(WorkerSettings(bootstrap_servers="127.0.0.1:1"))
    asyncio.run(app.on_partitions_revoked.send(set()))
    app.worker = SimpleNamespace(miss_events=lambda: missed.append("owners"))  # type: ignore[assignment]
    asyncio.run(app.on_partitions_revoked.send(set()))
    assert missed == ["owners"]


#: Terminals', the operating system's, and the credentials that a text in Faust shows as an example.
_HARMLESS = {"SHELL", "GEVENT_LOOP", "BROKER_USERNAME", "BROKER_PASSWORD", "DJANGO_SETTINGS_MODULE"}
#: A number, a version, a Service of Kubernetes, another broker, a switch, a path, a class, and an empty variable.
_HOSTILE = ("7", "1.4.2", "tcp://10.0.0.1:80", "redis://other:6379/0", "true", "/nowhere", "no.such:Class", "")


@pytest.mark.parametrize(("session_ms", "longest_s"), [(6_000, 20), (15_000, 20), (45_000, 50)])
def test_a_broker_that_never_answers_costs_seconds_and_joining_has_its_time(session_ms: int, longest_s: int) -> None:
    """By Faust's own settings a start beside a frozen broker takes up to 20 minutes."""
    app = create_app(WorkerSettings(bootstrap_servers="127.0.0.1:1", session_timeout=session_ms))
    assert app.conf.broker_request_timeout == longest_s
    # A joining member is answered when a dead member's session is over, or when the time of all to join is over.
    assert app.conf.broker_request_timeout > app.conf.broker_rebalance_timeout
    assert app.conf.broker_request_timeout > session_ms / 1_000


def _app(monkeypatch: pytest.MonkeyPatch) -> BridgeApp:
    monkeypatch.setattr(faust_settings.secrets, "token_hex", lambda _size: "0" * 8)
    return create_app(WorkerSettings(bootstrap_servers="127.0.0.1:1"))


def _values(app: BridgeApp) -> dict[str, Any]:
    # Each app replies to a random topic of its own.
    return {name: getattr(app.conf, name) for name in Settings.setting_names() - {"reply_to"}}


@pytest.mark.parametrize("value", _HOSTILE)
@pytest.mark.parametrize("prefix", ["", "FAUST_", "F_"])
def test_no_variable_changes_a_setting_of_faust(monkeypatch: pytest.MonkeyPatch, prefix: str, value: str) -> None:
    expected = _values(_app(monkeypatch))
    assert len(expected) > 80
    variables = [param.env_name for param in Settings.SETTINGS.values() if param.env_name]
    assert {"APP_VERSION", "WEB_PORT", "BROKER_URL", "APP_ENV_PREFIX", "CONSUMER_GROUP_INSTANCE_ID"} <= set(variables)
    for name in variables:
        monkeypatch.setenv(prefix + name, value)
    assert _values(_app(monkeypatch)) == expected


def test_a_django_project_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "no.such.settings")
    assert _app(monkeypatch).fixups == []


def _variables_in(package: str) -> Iterator[str]:
    """Names of the variables that the code of an installed package reads."""
    read = r"""(?:environ(?:\.get|\.pop)?|getenv)[\[(]\s*["'](\w+)["']|["'](\w+)["'] in os\.environ"""
    for file in Path(str(importlib.import_module(package).__file__)).parent.rglob("*.py"):
        for first, second in re.findall(read, file.read_text("utf-8")):
            # Faust reads its constants with two prefixes.
            yield f"FAUST_{first}" if file.name == "_env.py" else first or second


@pytest.mark.parametrize("package", ["faust", "mode", "aiokafka", "yarl", "multidict", "frozenlist", "propcache"])
def test_every_variable_that_a_library_of_the_worker_reads_is_foreign(package: str) -> None:
    found = set(_variables_in(package)) - _HARMLESS
    assert found or package == "propcache"
    assert {name for name in found if not is_foreign(name)} == set()


def test_foreign_variables_are_forgotten_and_ours_are_kept() -> None:
    environ = dict.fromkeys(
        ["FAUST_DEBUG", "F_WEB_PORT", "SSLKEYLOGFILE", "prometheus_multiproc_dir", "AIOKAFKA_NO_EXTENSIONS"], "1"
    )
    kept = dict.fromkeys(["TXBRIDGE_NAMESPACE", "PATH", "HOME", "DJANGO_SETTINGS_MODULE", "NO_COLOR", "OF_COURSE"], "1")
    environ |= kept
    forget_foreign_variables(environ)
    assert environ == kept
