"""The example from end to end: messages of both kinds, both workers, and the result."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Run it in a folder of its own."""
    folder = tempfile.TemporaryDirectory(prefix="celery-side-by-side-")
    os.environ["SHOP_FOLDER"] = folder.name
    sys.path.insert(0, str(HERE))

    import shop

    for _ in range(2):  # as a redelivery would
        shop.charge_of_before.delay("o-1", 995)
    shop.charge.send({"order": "o-2", "pence": 500})
    effects = Path(folder.name, "effects.txt")
    effects.touch()

    celery = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--pool", "solo", "--loglevel", "ERROR"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*celery, "--without-gossip", "--without-mingle"], cwd=HERE, **quiet) as worker:
        onefold = [sys.executable, "-m", "onefold", "worker", "shop:jobs", "--no-progress"]
        with subprocess.Popen(onefold, cwd=HERE, **quiet) as other:
            for order in ("o-1", "o-2"):
                print(order, shop.charge.wait(order, "100s").result)
            while effects.read_text().count("mailed") < 2:
                time.sleep(0.1)
            other.terminate()
        worker.terminate()
    print(*sorted(effects.read_text().splitlines()), sep="\n")
    shop.jobs.close()
    folder.cleanup()


if __name__ == "__main__":
    main()
