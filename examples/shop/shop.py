"""The service. uvicorn --factory shop:create_app --timeout-graceful-shutdown 20"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from orders import NewOrder, Payment, RefusedError, pay_order, place_order
from settings import Settings
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from txbridge_sqlalchemy import AsyncSqlBridge

from txbridge import Message, TxBridgeError
from txbridge.asgi import EXCEPTION_HANDLERS

log = logging.getLogger(__name__)


class Shop:
    """What all requests of a process share."""

    def __init__(self, settings: Settings) -> None:
        self.remind_after = settings.remind_after
        self.engine = create_async_engine(settings.database_url, pool_pre_ping=True)
        sessions = async_sessionmaker(self.engine, expire_on_commit=False)
        self.bridge = AsyncSqlBridge(
            "shop", sessions, settings.kafka, namespace=settings.namespace, start_without_kafka=True
        )

    async def is_ready(self) -> bool:
        try:
            async with self.engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            return False
        return self.bridge.is_connected

    async def cancel_reminder(self, transaction_id: str) -> None:
        try:
            await self.bridge.cancel(transaction_id, "the order is paid")
        except (TxBridgeError, TimeoutError) as error:
            log.warning("a reminder is not cancelled: %s", error)  # the consumer knows the payment, too


def shop_of(request: Request) -> Shop:
    shop: Shop = request.app.state.shop
    return shop


TheShop = Annotated[Shop, Depends(shop_of)]
routes = APIRouter()


@routes.post("/orders", status_code=201)
async def place(order: NewOrder, shop: TheShop) -> dict[str, int]:
    placed = Message("orders.placed", order, key=str(order.id))
    unpaid = Message("orders.unpaid", order, key=str(order.id), delay=shop.remind_after)
    async with shop.bridge.announce(placed, unpaid, once=f"order {order.id}") as tx:
        number = await place_order(tx.session, order, tx.transaction_id)
    return {"number": number}


@routes.post("/payments", status_code=201)
async def pay(payment: Payment, shop: TheShop, later: BackgroundTasks) -> dict[str, str]:
    paid = Message("orders.paid", payment, key=str(payment.id))
    async with shop.bridge.announce(paid, once=f"payment of {payment.id}") as tx:
        reminder = await pay_order(tx.session, payment)
    later.add_task(shop.cancel_reminder, reminder)
    return {"paid": str(payment.id)}


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
        async with shop.bridge:
            yield
        await shop.engine.dispose()

    app = FastAPI(title="Shop", lifespan=lifespan, exception_handlers=EXCEPTION_HANDLERS)
    app.include_router(routes)

    @app.exception_handler(RefusedError)
    async def refuse(request: Request, error: RefusedError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 409)

    return app
