"""The queues that are measured in the same way: onefold, and the others from their own environment.

Never here: how a tool is called (its module) or measured (`trials`). Invariant: a name that appears twice is one tool with
another server behind it.
"""

from __future__ import annotations

from benchmarks.peers.environment import PYTHON, redis_in_memory, redis_synced
from benchmarks.trials import Tool

ONEFOLD = Tool("onefold, SQLite", "benchmarks.onefold_tool", settings={"BENCH_SINK": "errors"})
ONEFOLD_REPEATABLE = Tool(
    "onefold, SQLite, repeatable", "benchmarks.onefold_tool",
    settings={"BENCH_EFFECT": "repeatable", "BENCH_SINK": "errors"},
)  # fmt: skip
ONEFOLD_LINES = Tool(
    "onefold, SQLite, repeatable, a line a job", "benchmarks.onefold_tool", settings={"BENCH_EFFECT": "repeatable"}
)
HUEY = Tool("Huey, SQLite", "benchmarks.peers.huey_sqlite", PYTHON)
TASKIQ = Tool("Taskiq, Redis streams", "benchmarks.peers.taskiq_streams", PYTHON, redis_in_memory)
TASKIQ_SYNCED = Tool("Taskiq, Redis streams", "benchmarks.peers.taskiq_streams", PYTHON, redis_synced)
CELERY = Tool("Celery, Redis", "benchmarks.peers.celery_redis", PYTHON, redis_in_memory)
DBOS = Tool("DBOS, SQLite", "benchmarks.peers.dbos_sqlite", PYTHON)
