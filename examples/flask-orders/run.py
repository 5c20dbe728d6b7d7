"""The example from end to end: two orders, one that fails, a worker, and the result."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NUMBERS = ("o-1", "o-2", "o-3")


def main() -> None:
    """Run it in a database of its own."""
    folder = tempfile.TemporaryDirectory(prefix="flask-orders-")
    os.environ["ORDERS_DATABASE"] = f"{folder.name}/orders.db"
    sys.path.insert(0, str(HERE))

    import orders
    from sqlalchemy import func, select
    from sqlalchemy.orm import Session

    client = orders.create_app().test_client()
    for number, grams in zip(NUMBERS, (500, 900, 31_000), strict=True):
        print(number, client.post("/orders", json={"number": number, "grams": grams}).status_code)
    print("before the worker:", [client.get(f"/orders/{one}/parcel").json["state"] for one in NUMBERS])
    worker = [sys.executable, "-m", "onefold", "worker", "orders:jobs", "--until-empty", "--no-progress"]
    subprocess.run(worker, cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    print("after it:", [client.get(f"/orders/{one}/parcel").json["state"] for one in NUMBERS])
    with Session(orders.engine) as session:
        stored = session.scalars(select(orders.Order.number)).all()
        print("orders:", stored, "parcels:", session.scalar(select(func.count()).select_from(orders.Parcel)))
    orders.jobs.close()
    folder.cleanup()


if __name__ == "__main__":
    main()
