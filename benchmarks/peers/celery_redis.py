"""Celery on Redis: one prefork worker process.

Not the defaults: late acknowledgement and `task_reject_on_worker_lost`, Celery's way to keep a job whose worker dies;
results are ignored, so that no result backend is paid for.
"""

from __future__ import annotations

from celery import Celery

from benchmarks import probe

app = Celery("peers", broker=probe.redis_url())
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, task_ignore_result=True)
run = probe.handler()


@app.task(name="job")
def job(text: str) -> None:
    run(probe.note(text))


send = job.delay


def work() -> None:
    probe.become("celery", "-A", "benchmarks.peers.celery_redis", "worker", "--concurrency", "1", "--loglevel", "ERROR")
