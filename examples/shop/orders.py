"""The tables of the shop, and what requests do in them. Run it to create them; in production a migration does it."""

import asyncio
from uuid import UUID

import txbridge_sqlalchemy
from pydantic import BaseModel, PositiveInt
from settings import Settings
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Tables(DeclarativeBase):
    pass


class Stock(Tables):
    __tablename__ = "stock"
    item: Mapped[str] = mapped_column(primary_key=True)
    left: Mapped[int]


class Order(Tables):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[UUID] = mapped_column(unique=True)
    item: Mapped[str]
    quantity: Mapped[int]
    paid: Mapped[bool] = mapped_column(default=False)
    transaction_id: Mapped[str]  # by which the reminder is cancelled


class NewOrder(BaseModel):
    id: UUID  # the caller makes it: a request that is sent again has the same
    item: str
    quantity: PositiveInt


class Payment(BaseModel):
    id: UUID  # of the order


class RefusedError(Exception):
    """Nothing is stored, and nothing announced."""


async def place_order(session: AsyncSession, order: NewOrder, transaction_id: str) -> int:
    row = Order(**order.model_dump(), transaction_id=transaction_id)
    session.add(row)
    await session.flush()
    taken = update(Stock).where(Stock.item == order.item, Stock.left >= order.quantity)
    if (await session.execute(taken.values(left=Stock.left - order.quantity).returning(Stock.left))).first() is None:
        raise RefusedError("out of stock")
    return row.number


async def pay_order(session: AsyncSession, payment: Payment) -> str:
    order = (await session.scalars(select(Order).where(Order.id == payment.id).with_for_update())).one_or_none()
    if order is None:
        raise RefusedError("no such order")
    order.paid = True
    return order.transaction_id


async def create_tables(engine: AsyncEngine, **stock: int) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Tables.metadata.create_all)
        await connection.run_sync(txbridge_sqlalchemy.metadata.create_all)  # from which checks are answered
    async with AsyncSession(engine) as session, session.begin():
        for item, left in stock.items():
            await session.merge(Stock(item=item, left=left))


if __name__ == "__main__":
    asyncio.run(create_tables(create_async_engine(Settings.from_environment().database_url), mug=100))
