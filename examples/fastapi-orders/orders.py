"""Orders over HTTP; ORDERS_DATABASE says where the database is."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import ForeignKey, create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import onefold
import onefold.sqlalchemy

DATABASE = os.environ.get("ORDERS_DATABASE", "orders.db")
engine = create_engine(f"sqlite:///{DATABASE}")
jobs = onefold.App("orders", url=f"sqlite:///{DATABASE}?adopt=yes")
parcels = jobs.queue("parcels")


class Base(DeclarativeBase):
    """The tables."""


class Order(Base):
    """An order; its number comes from the customer's basket."""

    __tablename__ = "orders"
    number: Mapped[str] = mapped_column(primary_key=True)
    grams: Mapped[int]


class Parcel(Base):
    """A parcel. Only the job prevents a second one from being booked for an order."""

    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[str] = mapped_column(ForeignKey("orders.number"))


class Basket(BaseModel):
    """The body of a POST."""

    number: str
    grams: int


@jobs.job(parcels, key="{number}", effect="transactional")
def book_parcel(order: dict[str, str], ctx: onefold.Context) -> int:
    """Book a parcel: its row commits together with the record that the job is done."""
    with onefold.sqlalchemy.session(ctx) as session:
        parcel = Parcel(number=order["number"])
        session.add(parcel)
        session.flush()
        return parcel.id


@asynccontextmanager
async def lifespan(_api: FastAPI) -> AsyncIterator[None]:
    """Make the tables, and open the engine before the first transaction."""
    Base.metadata.create_all(engine)
    await jobs.aruntime()
    yield
    await jobs.aclose()


def transaction() -> Iterator[Session]:
    """A transaction for a request: committed when it ends well, rolled back when it raises."""
    with Session(engine) as session, session.begin():
        yield session


api = FastAPI(lifespan=lifespan)


@api.post("/orders", status_code=202)
def place(basket: Basket, session: Annotated[Session, Depends(transaction, scope="function")]) -> dict[str, str]:
    """Store an order and send its job: both, or neither."""
    try:
        session.add(Order(number=basket.number, grams=basket.grams))
        session.flush()
    except IntegrityError as error:
        raise HTTPException(409, f"{basket.number} was placed before") from error
    receipt = book_parcel.send({"number": basket.number}, connection=session)
    if basket.grams > 30_000:
        raise HTTPException(422, "the courier takes 30 kg at most")  # the message goes with the order
    return {"job": receipt.key}


@api.get("/orders/{number}/parcel")
async def parcel(number: str) -> dict[str, object]:
    """The job's state, and what it returned."""
    known = await book_parcel.alook(number)
    return {"state": known.state, "parcel": known.result}
