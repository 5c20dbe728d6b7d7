"""What onefold costs, beside programs that do the same durable work without it.

`python -m benchmarks.harness` measures onefold against bare sqlite3 programs, `python -m benchmarks.peers` against
other queues. Both write `docs/benchmarks.json` and, from it, `docs/benchmarks.md`.
Never here: anything the package imports. Invariant: every figure stands beside a reference of the same run.
"""
