# finds: DUP007 error, DUP007 error
import time
import uuid

from onefold import App, once, store

app = App("shop")
orders = app.queue("orders")
records = store("sqlite:///records.db")


@app.job(orders, key=lambda order: str(uuid.uuid4()))
def ship(order: dict) -> None:
    print(order)


@once(key=lambda arguments: f"{arguments['order']}-{time.time()}", store=records)
def charge(order: str) -> str:
    return order
