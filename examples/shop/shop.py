"""The service. uvicorn --factory shop:create_app --timeout-graceful-shutdown 20"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from orders import AlreadyPaid, AlreadyPlaced, NewOrder, Payment, pay_order, place_order
from settings import Settings
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from txbridge_sqlalchemy import AsyncSqlTransactionListener

from txbridge import (
    AsyncTransactionProducer,
    AsyncTransactionSendResult,
    DecidedBy,
    LocalTransactionState,
    Message,
    PrepareError,
    TxBridgeError,
)

log = logging.getLogger(__name__)


class Shop:
    """What all requests of a process share."""

    def __init__(self, settings: Settings) -> None:
        self.remind_after = settings.remind_after
        self.engine = create_async_engine(settings.database_url, pool_pre_ping=True)
        listener = AsyncSqlTransactionListener(async_sessionmaker(self.engine))
        self.producer = AsyncTransactionProducer(
            "shop", listener, settings.kafka, namespace=settings.namespace, start_without_kafka=True
        )

    async def is_ready(self) -> bool:
        try:
            async with self.engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            return False
        return self.producer.is_connected

    async def cancel_reminder(self, transaction_id: str) -> None:
        try:
            await self.producer.cancel(transaction_id, "the order is paid")
        except (TxBridgeError, TimeoutError) as error:
            log.warning("a reminder is not cancelled: %s", error)  # the consumer knows the payment, too


def shop_of(request: Request) -> Shop:
    shop: Shop = request.app.state.shop
    return shop


TheShop = Annotated[Shop, Depends(shop_of)]
routes = APIRouter()


@routes.post("/orders")
async def place(order: NewOrder, shop: TheShop) -> JSONResponse:
    messages = [
        Message("orders.placed", order, key=str(order.id)),
        Message("orders.unpaid", order, key=str(order.id), delay=shop.remind_after),
    ]
    result = await shop.producer.send_messages_in_transaction(messages, order, execute=place_order)
    if isinstance(result.local_exception, AlreadyPlaced):
        return JSONResponse({"number": result.local_exception.number})
    return answer(result, {"number": result.value})


@routes.post("/payments")
async def pay(payment: Payment, shop: TheShop, later: BackgroundTasks) -> JSONResponse:
    message = Message("orders.paid", payment, key=str(payment.id))
    result = await shop.producer.send_message_in_transaction(message, payment, execute=pay_order)
    if result.value is not None:
        later.add_task(shop.cancel_reminder, result.value)
    if isinstance(result.local_exception, AlreadyPaid):
        return JSONResponse({"paid": str(payment.id)})
    return answer(result, {"paid": str(payment.id)})


def answer(result: AsyncTransactionSendResult[Any], made: dict[str, Any]) -> JSONResponse:
    match result.local_transaction_state, result.decided_by:
        case LocalTransactionState.COMMIT_MESSAGE, _:
            return JSONResponse(made, 201)
        case LocalTransactionState.ROLLBACK_MESSAGE, DecidedBy.FUNCTION:
            return JSONResponse({"error": result.reason}, 409)
        case LocalTransactionState.ROLLBACK_MESSAGE, DecidedBy.CHECK:
            return try_again("the database took too long")
        case LocalTransactionState.ROLLBACK_MESSAGE, _:
            assert result.local_exception is not None
            raise result.local_exception  # a bug, or the database failed: 500, and a trace in the log
        case _:
            # COMMIT was not answered. A check finds out. The same request, sent again, gets the answer.
            return JSONResponse({"error": "not known yet: ask again"}, 202)


def try_again(why: str) -> JSONResponse:
    return JSONResponse({"error": f"{why}; nothing has happened, try again"}, 503, {"Retry-After": "1"})


@routes.get("/livez")
async def livez() -> dict[str, bool]:
    return {"ok": True}


@routes.get("/readyz")
async def readyz(shop: TheShop) -> JSONResponse:
    is_ready = await shop.is_ready()
    return JSONResponse({"ok": is_ready}, 200 if is_ready else 503)


def create_app(settings: Settings | None = None) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.shop = shop = Shop(settings or Settings.from_environment())
        async with shop.producer:
            yield
        await shop.engine.dispose()

    app = FastAPI(title="Shop", lifespan=lifespan)
    app.include_router(routes)

    @app.exception_handler(PrepareError)
    async def refuse(request: Request, error: PrepareError) -> JSONResponse:
        return try_again("Kafka did not store the message" if error.cause else "the database does not answer")

    return app
