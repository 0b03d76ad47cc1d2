"""Announcements without SQL, the life of a bridge in a web application, and the answers of web services."""

from __future__ import annotations

import json

import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine

from tests.support.django_work import configure_django
from txbridge import AsyncBridge, Bridge, Message, Rollback, UsageError
from txbridge.asgi import EXCEPTION_HANDLERS, readiness
from txbridge.client.errors import AlreadyDoneError, OutcomeUnknownError, PrepareError
from txbridge.testing.memory import MemoryBridge, TransactionState

MESSAGE = Message("orders", b"placed")


@pytest.fixture
def memory():
    with MemoryBridge() as bridge:
        yield bridge


def values(memory):
    return [message.value() for message in memory.delivered("orders")]


def test_without_sql_a_function_answers_what_a_block_has_left_behind(memory):
    stored = set()
    with Bridge("orders", lambda message: message.transaction_id in stored, memory.settings) as bridge:
        with bridge.announce(MESSAGE, Message("orders", b"reminder", delay=30)) as tx:
            stored.add(tx.transaction_id)
        assert (tx.is_committed, values(memory)) == (True, [b"placed"])
        with pytest.raises(OutcomeUnknownError) as raised, bridge.announce(MESSAGE) as tx:
            {}[stored.add(tx.transaction_id)]
        assert isinstance(raised.value.__cause__, KeyError)
        assert (tx.is_committed, memory.read_fate(tx)) == (None, TransactionState.PENDING)
        memory.advance(30)
        assert values(memory) == [b"placed", b"placed", b"reminder"]
        with pytest.raises(Rollback, match="sold out"), bridge.announce(MESSAGE) as tx:
            raise Rollback("sold out")
        assert (tx.is_committed, memory.read_fate(tx)) == (False, TransactionState.ROLLED_BACK)
        with pytest.raises(UsageError, match="no session or connection"), bridge.announce(MESSAGE) as tx:
            print(tx.session)
        with pytest.raises(UsageError, match="once needs a bridge with SQL"), bridge.announce(MESSAGE, once="1"):
            pass
        with pytest.raises(UsageError, match="close\\(\\) was called"), bridge.announce(MESSAGE):
            bridge.close()


@pytest.mark.parametrize("is_plain", [True, False])
async def test_on_a_loop_the_function_may_be_a_coroutine_function(memory, is_plain):
    async def check(_):
        return True

    async with AsyncBridge("orders", (lambda _: True) if is_plain else check, memory.settings) as bridge:
        with pytest.raises(UsageError, match="once needs a bridge with SQL"):
            async with bridge.announce(MESSAGE, once="1"):
                pass
        memory.lose_decision()
        async with bridge.announce(MESSAGE):
            pass
        assert values(memory) == []
        await memory.aio.let_checks_be_due()
        assert values(memory) == [b"placed"]


def test_what_can_not_be_called_is_refused_at_once(memory):
    async def check(_): ...

    with pytest.raises(UsageError, match="cannot be called with \\(message\\)"):
        Bridge("orders", lambda: True, memory.settings)
    with pytest.raises(UsageError, match="a function is needed, not bool"):
        Bridge("orders", True, memory.settings)
    with pytest.raises(UsageError, match="a coroutine function"):
        Bridge("orders", check, memory.settings)


@pytest.mark.filterwarnings("ignore:Using `httpx` with")
@pytest.mark.parametrize("kind", [AsyncBridge, Bridge])
def test_an_application_starts_and_closes_its_bridge_and_answers_for_it(memory, kind):
    from fastapi.testclient import TestClient  # it warns when it is imported

    bridge = kind("orders", lambda _: True, memory.settings)
    shop = FastAPI(lifespan=bridge.lifespan, exception_handlers=EXCEPTION_HANDLERS)
    shop.add_route("/readyz", readiness(bridge))

    @shop.post("/orders")
    async def place(fails: bool = False, repeats: bool = False):
        if repeats:
            raise AlreadyDoneError("0123456789ABCDEF" * 2)
        if kind is Bridge:
            with bridge.announce(MESSAGE):
                assert not fails
        else:
            async with bridge.announce(MESSAGE):
                assert not fails

    for _ in range(2 if kind is AsyncBridge else 1):
        with TestClient(shop) as client:
            assert client.post("/orders").status_code == 200
            assert client.get("/readyz").status_code == 200
            repeated = client.post("/orders?repeats=1")
            assert (repeated.status_code, repeated.json()["transaction"]) == (200, "01234567")
            unknown = client.post("/orders?fails=1")
            [pending] = memory.list_pending()
            assert (unknown.status_code, unknown.json()["transaction"]) == (503, pending.transaction_id[:8])
            memory.advance(300)
            memory.stop()
            refused = client.post("/orders")
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert client.get("/readyz").status_code == 503
            memory.start()
        assert not bridge.is_connected


def test_djangos_middleware_answers_for_announcements_alone():
    configure_django(create_engine("sqlite://"))
    from txbridge_django.middleware import AnnouncementErrors

    middleware = AnnouncementErrors(lambda request: request)
    refused = middleware.process_exception(None, PrepareError("away"))
    assert (refused.status_code, refused["Retry-After"]) == (503, "1")
    unknown = middleware.process_exception(None, OutcomeUnknownError("0123456789ABCDEF" * 2))
    assert (unknown.status_code, json.loads(unknown.content)["transaction"]) == (503, "01234567")
    assert middleware.process_exception(None, AlreadyDoneError("0123456789ABCDEF" * 2)).status_code == 200
    assert middleware.process_exception(None, KeyError()) is None
    assert middleware("request") == "request"
