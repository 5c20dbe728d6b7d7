"""Messages sent by threads and tasks of a handler belong to its run: they leave when it completes, or are refused."""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.options import WorkerSettings
from onefold.runner import worker_setup as workers
from onefold.testing import inline


@dataclass
class Order:
    order_id: str


class Shop:
    """A job that fails or not after what `act` did, and a job that is sent meanwhile."""

    def __init__(self) -> None:
        self.app = onefold.App("shop")
        queue, mails = self.app.queue("orders"), self.app.queue("mails")
        self.act: Callable[[onefold.Context], None] = lambda ctx: None
        self.fails = False
        self.mailed: list[str] = []

        @self.app.job(mails, key="{order_id}")
        def mail(order: Order) -> None:
            self.mailed.append(order.order_id)

        @self.app.job(queue, key="{order_id}", retry=onefold.Retry(attempts=1))
        def book(order: Order, ctx: onefold.Context) -> None:
            self.act(ctx)
            if self.fails:
                raise ValueError("no room")

        self.mail, self.book = mail, book


def in_thread(shop: Shop, ctx: onefold.Context) -> None:
    thread = threading.Thread(target=shop.mail.send, args=[Order("m")])
    thread.start()
    thread.join()


def in_thread_of_thread(shop: Shop, ctx: onefold.Context) -> None:
    thread = threading.Thread(target=in_thread, args=[shop, ctx])
    thread.start()
    thread.join()


def in_pool(shop: Shop, ctx: onefold.Context) -> None:
    with ThreadPoolExecutor(2) as pool:
        pool.submit(shop.mail.send, Order("m")).result()


def in_pool_of_multiprocessing(shop: Shop, ctx: onefold.Context) -> None:
    with ThreadPool(2) as pool:
        pool.map(shop.mail.send, [Order("m")])


def in_older_pool_by_context(shop: Shop, ctx: onefold.Context) -> None:
    POOL.submit(ctx.send, shop.mail, Order("m")).result()


def in_older_pool_by_copy(shop: Shop, ctx: onefold.Context) -> None:
    POOL.submit(contextvars.copy_context().run, shop.mail.send, Order("m")).result()


def in_shared_pool(shop: Shop, ctx: onefold.Context) -> None:
    POOL.submit(shop.mail.send, Order("m")).result()


def in_executor_of_loop(shop: Shop, ctx: onefold.Context) -> None:
    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, shop.mail.send, Order("m"))

    asyncio.run(main())


def in_task(shop: Shop, ctx: onefold.Context) -> None:
    async def main() -> None:
        await asyncio.to_thread(shop.mail.send, Order("m"))

    asyncio.run(main())


def in_raw_thread(shop: Shop, ctx: onefold.Context) -> None:
    done = threading.Event()

    def act() -> None:
        shop.mail.send(Order("m"))
        done.set()

    _thread.start_new_thread(act, ())
    assert done.wait(30)


def in_callback_of_a_future(shop: Shop, ctx: onefold.Context) -> None:
    go, done = threading.Event(), threading.Event()

    def act(_: object) -> None:
        shop.mail.send(Order("m"))
        done.set()

    future = POOL.submit(go.wait, 30)
    future.add_done_callback(act)
    go.set()
    assert done.wait(30)


def in_callback_of_multiprocessing(shop: Shop, ctx: onefold.Context) -> None:
    done = threading.Event()

    def act(_: object) -> None:
        shop.mail.send(Order("m"))
        done.set()

    OTHER_POOL.apply_async(int, (), {}, act).get(30)
    assert done.wait(30)


def in_callback_of_an_error(shop: Shop, ctx: onefold.Context) -> None:
    done = threading.Event()

    def act(_: object) -> None:
        shop.mail.send(Order("m"))
        done.set()

    OTHER_POOL.map_async(int, ["no number"], error_callback=act).wait(30)
    assert done.wait(30)


POOL = ThreadPoolExecutor(1)
OTHER_POOL = ThreadPool(1)
atexit.register(OTHER_POOL.terminate)
POOL.submit(int).result()  # its thread is older than any handler


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "way",
    [
        in_thread,
        in_thread_of_thread,
        in_pool,
        in_shared_pool,
        in_executor_of_loop,
        in_pool_of_multiprocessing,
        in_older_pool_by_context,
        in_older_pool_by_copy,
        in_task,
        in_raw_thread,
        in_callback_of_a_future,
        in_callback_of_multiprocessing,
        in_callback_of_an_error,
    ],
)
def test_what_a_handlers_threads_send_leaves_with_its_run_or_not_at_all(way: Any, fails: bool) -> None:
    shop = Shop()
    shop.act, shop.fails = (lambda ctx: way(shop, ctx)), fails
    with inline(shop.app) as world:
        shop.book.send(Order("o-1"))
        world.run()
        assert shop.mailed == ([] if fails else ["m"])
        assert world.depth("mails").visible == 0


def test_a_thread_that_outlives_its_run_is_refused_and_says_so() -> None:
    shop = Shop()
    over, threads, told = threading.Event(), [], []

    def later() -> None:
        over.wait(30)
        for send in (lambda: shop.mail.send(Order("late")), lambda: told[0].send(shop.mail, Order("late"))):
            with pytest.raises(errors.UsageError, match="after its handler has ended"):
                send()
        shop.mail.deliver([shop.mail.message(Order("meant"))])

    def act(ctx: onefold.Context) -> None:
        told.append(ctx)
        threads.append(threading.Thread(target=later))
        threads[0].start()

    shop.act = act
    failures: list[Any] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        with inline(shop.app) as world:
            shop.book.send(Order("o-1"))
            world.run()
            over.set()
            threads[0].join()
            world.run()
    finally:
        threading.excepthook = hook
    assert failures == []
    assert shop.mailed == ["meant"]


def test_threads_that_no_handler_started_send_at_once() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        thread = threading.Thread(target=shop.mail.send, args=[Order("m")])
        thread.start()
        thread.join()
        assert world.depth("mails").visible == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_pool_whose_thread_a_handler_started_serves_each_run_for_itself(fails: bool) -> None:
    """The first run is still going, and ends as it may: what others submit leaves with them."""
    shop, pool = Shop(), ThreadPoolExecutor(1)
    first_is_there, go_on = threading.Event(), threading.Event()

    def act(ctx: onefold.Context) -> None:
        pool.submit(shop.mail.send, Order(f"of-{ctx.key}")).result(30)
        if ctx.key == "first":
            first_is_there.set()
            assert go_on.wait(30)
            if fails:
                raise ValueError("no room")

    shop.act = act
    with inline(shop.app) as world:
        shop.book.send(Order("first"))
        thread = threading.Thread(target=world.run)
        thread.start()
        assert first_is_there.wait(30)
        pool.submit(shop.mail.send, Order("of-nobody")).result(30)  # leaves at once
        assert world.depth("mails").visible == 1
        go_on.set()
        thread.join(30)
        shop.book.send(Order("second"))
        world.run()
    assert sorted(shop.mailed) == sorted(["of-nobody", "of-second"] + ["of-first"] * (not fails))
    pool.shutdown()


def test_a_loop_or_pool_that_a_handler_started_serves_each_run_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    """As libraries do that keep a loop in a thread of its own, begun when it is first needed."""
    shop, loop = Shop(), asyncio.new_event_loop()
    pools, threads = list[ThreadPool](), list[threading.Thread]()

    async def send(order: Order) -> None:
        shop.mail.send(order)

    def act(ctx: onefold.Context) -> None:
        if not pools:
            threads.append(threading.Thread(target=loop.run_forever))
            threads[0].start()
            pools.append(ThreadPool(1))
        asyncio.run_coroutine_threadsafe(send(Order(f"loop-of-{ctx.key}")), loop).result(30)
        pools[0].apply(shop.mail.send, [Order(f"pool-of-{ctx.key}")])

    shop.act = act
    with inline(shop.app) as world:
        for key in ("first", "second"):
            shop.book.send(Order(key))
            world.run()
        asyncio.run_coroutine_threadsafe(send(Order("loop-of-nobody")), loop).result(30)
        pools[0].apply(shop.mail.send, [Order("pool-of-nobody")])
        world.run()
    loop.call_soon_threadsafe(loop.stop)
    threads[0].join(30)
    loop.close()
    pools[0].terminate()
    pools[0].join()
    whose = ("first", "nobody", "second")
    assert sorted(shop.mailed) == [*(f"loop-of-{one}" for one in whose), *(f"pool-of-{one}" for one in whose)]
    assert caplog.text == ""


def test_a_refusal_in_a_pool_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    shop, over = Shop(), threading.Event()
    shop.act = lambda ctx: POOL.submit(lambda: over.wait(30) and shop.mail.send(Order("late")))
    with inline(shop.app) as world:
        shop.book.send(Order("o-1"))
        world.run()
        over.set()
        POOL.submit(int).result(30)
        world.run()
    assert shop.mailed == []
    assert "A thread or task of the run of book 'o-1' sends after its handler has ended" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
def test_what_tasks_of_a_coroutine_send_leaves_with_its_run_or_not_at_all(fails: bool) -> None:
    app, mailed = onefold.App("shop"), list[str]()
    mails = app.queue("mails")

    @app.job(mails, key="{order_id}")
    def mail(order: Order) -> None:
        mailed.append(order.order_id)

    @app.job(app.queue("orders"), key="{order_id}", retry=onefold.Retry(attempts=1))
    async def book(order: Order, ctx: onefold.Context) -> None:
        loop = asyncio.get_running_loop()
        copy = contextvars.copy_context()
        await asyncio.gather(
            mail.asend(Order("gathered")),
            asyncio.create_task(mail.asend(Order("task"))),
            asyncio.to_thread(mail.send, Order("thread")),
            loop.run_in_executor(POOL, ctx.send, mail, Order("by context")),
            loop.run_in_executor(POOL, copy.run, mail.send, Order("by copy")),
        )
        called = loop.create_future()
        loop.call_soon(lambda: called.set_result(mail.send(Order("callback"))))
        await called
        if fails:
            raise ValueError("no room")

    with inline(app) as world:
        book.send(Order("o-1"))
        world.run()
    assert sorted(mailed) == ([] if fails else ["by context", "by copy", "callback", "gathered", "task", "thread"])


def in_child(send: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            send()
        except errors.UsageError:
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_a_forked_child_sends_is_in_no_copy_of_an_outbox(tmp_path: Path) -> None:
    shop, codes = Shop(), list[int]()
    shop.app.url = f"sqlite:///{tmp_path / 'shop.db'}"

    def act(ctx: onefold.Context) -> None:
        thread = threading.Thread(target=lambda: codes.append(in_child(lambda: shop.mail.send(Order("of-thread")))))
        thread.start()
        thread.join()
        copy = contextvars.copy_context()
        codes.append(in_child(lambda: copy.run(shop.mail.send, Order("of-copy"))))
        codes.append(in_child(lambda: ctx.send(shop.mail, Order("of-context"))))

    shop.act = act
    shop.book.send(Order("o-1"))
    runtime = shop.app.runtime()
    worker = workers.make_worker(
        runtime,
        shop.app.jobs,
        shop.app.registry.job_of,
        settings=WorkerSettings(until_empty=True),
        history="off",
        sinks=[],
    )
    worker.run()
    shop.app.close()
    assert codes == [0, 0, 2]
    assert sorted(shop.mailed) == ["of-copy", "of-thread"]
