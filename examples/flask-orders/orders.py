"""Orders over HTTP; ORDERS_DATABASE says where the database is."""

import os

from flask import Flask, request
from sqlalchemy import ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import onefold
import onefold.sqlalchemy

DATABASE = os.environ.get("ORDERS_DATABASE", "orders.db")
engine = create_engine(f"sqlite:///{DATABASE}")
jobs = onefold.App("orders", url=f"sqlite:///{DATABASE}?adopt=yes")


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


@jobs.job(jobs.queue("parcels"), key="{number}", effect="transactional")
def book_parcel(order: dict[str, str], ctx: onefold.Context) -> int:
    """Book a parcel: its row commits together with the record that the job is done."""
    with onefold.sqlalchemy.session(ctx) as session:
        parcel = Parcel(number=order["number"])
        session.add(parcel)
        session.flush()
        return parcel.id


def create_app() -> Flask:
    """Make the tables, and open the engine before the first transaction."""
    Base.metadata.create_all(engine)
    jobs.runtime()
    app = Flask(__name__)

    @app.post("/orders")
    def place() -> tuple[dict[str, str], int]:
        """Store an order and send its job: both, or neither."""
        basket = request.get_json()
        with Session(engine) as session, session.begin():
            session.add(Order(number=basket["number"], grams=basket["grams"]))
            session.flush()
            receipt = book_parcel.send({"number": basket["number"]}, connection=session)
            if basket["grams"] > 30_000:
                raise ValueError("the courier takes 30 kg at most")  # the message goes with the order
        return {"job": receipt.key}, 202

    @app.get("/orders/<number>/parcel")
    def parcel(number: str) -> dict[str, object]:
        """The job's state, and what it returned."""
        known = book_parcel.look(number)
        return {"state": known.state, "parcel": known.result}

    @app.errorhandler(ValueError)
    def refused(error: ValueError) -> tuple[str, int]:
        """Answer what a rule of the shop refuses."""
        return str(error), 422

    return app
