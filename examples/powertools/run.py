"""The example from end to end: duplicates, and a run that comes back late."""

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any


class Context:
    """As much of Lambda's context as Powertools needs."""

    def __init__(self, left_ms: int) -> None:
        self.left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        """How long the invocation may still take."""
        return self.left_ms


def main() -> None:
    """Run it with records of its own."""
    folder = tempfile.TemporaryDirectory(prefix="powertools-")
    os.environ["PAYMENTS_RECORDS"] = f"sqlite:///{folder.name}/records.db"
    sys.path.insert(0, str(Path(__file__).parent))

    import payments

    orders = [{"id": "o-1"}] * 3
    print(payments.handler({"orders": orders}, Context(30_000)), "charged:", payments.charged)

    def another_delivery() -> None:
        """The time of the first run is over: another container takes its key over, and finishes."""
        other = threading.Thread(target=lambda: payments.handler({"orders": [{"id": "o-2"}]}, Context(30_000)))
        other.start()
        other.join()
        raise TimeoutError("the bank did not answer")

    late: dict[str, Any] = {"id": "o-2", "meanwhile": another_delivery}
    try:
        payments.handler({"orders": [late]}, Context(-1))
    except TimeoutError as error:
        print("the late run:", error)
    print(payments.handler({"orders": [{"id": "o-2"}]}, Context(30_000)), "charged:", payments.charged)
    folder.cleanup()


if __name__ == "__main__":
    main()
