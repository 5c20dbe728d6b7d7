# finds: nothing
"""onefold's own declarations, with keys from the payload."""
import onefold

app = onefold.App("shop")
orders = app.queue("orders")


@app.job(orders, key="{order_id}")
def ship(order: dict) -> None:
    print(order)


@app.job(orders, key=lambda order: f"{order['shop']}-{order['id']}")
def bill(order: dict) -> None:
    print(order)


@onefold.once(key="{order.id}", store=onefold.store("sqlite:///records.db"))
def charge(order):
    return order
