"""`await event` under asyncio and trio."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import trio
from peering import call_on, exported_event

import xpushare as xs
from harness import Child, fd_count, kept
from xpushare.timeline import waiting


@pytest.fixture
def event(device: str) -> Any:
    with xs.Event(device, enable_ipc=True) as event:
        yield event


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Runs a coroutine function in that library, and sees that nothing stays registered."""

    def run(main: Any) -> Any:
        result = asyncio.run(main(Asyncio)) if request.param == "asyncio" else trio.run(main, Trio)
        assert waiting._waiters == {}
        assert waiting._watched == {}
        assert waiting._trio_runs == set()
        return result

    return run


class Asyncio:
    @staticmethod
    async def all(*functions: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for function in functions:
                group.create_task(function())

    @staticmethod
    async def step() -> None:
        await asyncio.sleep(0)

    @staticmethod
    async def gives_up(function: Any) -> bool:
        try:
            async with asyncio.timeout(0.02):
                await function()
        except TimeoutError:
            return True
        return False


class Trio:
    @staticmethod
    async def all(*functions: Any) -> None:
        async with trio.open_nursery() as group:
            for function in functions:
                group.start_soon(function)

    @staticmethod
    async def step() -> None:
        await trio.lowlevel.checkpoint()

    @staticmethod
    async def gives_up(function: Any) -> bool:
        with trio.move_on_after(0.02) as scope:
            await function()
        return scope.cancelled_caught


def test_a_complete_event(run: Any, event: xs.Event) -> None:
    async def main(_library: Any) -> None:
        await event
        await event.reached(0)
        event.signal()
        await event
        await event.reached(1)
        assert await event.reached() is None

    run(main)


def test_a_future_point(run: Any, event: xs.Event) -> None:
    async def main(library: Any) -> None:
        order: list[str] = []

        async def wait() -> None:
            await event.reached(3)
            order.append(f"reached {event.value}")

        async def signal() -> None:
            for _ in range(3):
                await library.step()
                order.append(f"signal {event.signal()}")

        await library.all(wait, signal)
        assert order == ["signal 1", "signal 2", "signal 3", "reached 3"]

    run(main)


def test_await_means_the_point_known_at_the_call(run: Any, event: xs.Event, device: str) -> None:
    gate = threading.Event()
    with xs.Queue(device) as queue:
        call_on(queue, gate.wait)
        queue.signal(event)

        async def main(library: Any) -> None:
            async def wait() -> None:
                await event
                assert event.value >= 1

            async def let() -> None:
                await library.step()
                gate.set()

            await library.all(wait, let)

        run(main)
        queue.synchronize(10)


def test_many_waiters(run: Any, event: xs.Event, peer: Child) -> None:
    handle = xs.ipc.event.get(event)
    before = threading.active_count()

    async def main(library: Any) -> None:
        reached: list[int] = []

        def waiter(point: int) -> Any:
            async def wait() -> None:
                await event.reached(point)
                reached.append(point)

            return wait

        async def signal() -> None:
            await library.step()
            assert threading.active_count() <= before  # no thread a waiter; one of before may have ended

            def signal(handle: xs.ipc.Handle) -> int:
                with xs.ipc.event.open(handle) as event:
                    for _ in range(100):
                        last: int = event.signal()
                return last

            assert peer.call(signal, handle) == 100

        await library.all(*map(waiter, range(1, 101)), *map(waiter, [100] * 100), signal)
        assert sorted(reached) == sorted([*range(1, 101), *[100] * 100])

    run(main)
    xs.ipc.event.put(handle)


def test_time_outs_and_cancellation(run: Any, event: xs.Event) -> None:
    fds = fd_count()

    async def main(library: Any) -> None:
        assert await library.gives_up(lambda: event.reached(1))
        assert await library.gives_up(lambda: event.reached(1))
        assert waiting._waiters == {}
        event.signal()
        assert not await library.gives_up(lambda: event.reached(1))

    run(main)
    run(main) if event.value < 1 else None
    assert fd_count() <= fds + 1  # the process's one notification fd


def test_a_task_is_cancelled_while_it_waits(event: xs.Event) -> None:
    async def main() -> None:
        task = asyncio.create_task(event.reached(1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waiting._waiters == {}
        event.signal()

    asyncio.run(main())
    assert waiting._watched == {}


def test_two_loops_of_two_threads(event: xs.Event) -> None:
    async def main() -> None:
        await event.reached(1)

    threads = [
        threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(main(), 10))),
        threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(main(), 10))),
        threading.Thread(target=lambda: trio.run(main)),
    ]
    for thread in threads:
        thread.start()
    event.signal()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert waiting._waiters == {}


def test_a_signal_from_another_process(run: Any, device: str, peer: Child) -> None:
    handle = peer.call(exported_event, device)
    with xs.ipc.event.open(handle) as event:

        async def main(library: Any) -> None:
            async def signal() -> None:
                await library.step()
                peer.call(lambda: kept["event"].signal())

            await library.all(lambda: event.reached(1), signal)

        run(main)


@pytest.mark.parametrize("library", [Asyncio, Trio])
def test_a_loss_in_another_process(library: Any, device: str) -> None:
    with Child() as child:
        handle = child.call(exported_event, device)
        with xs.ipc.event.open(handle) as event:

            async def main() -> None:
                async def wait() -> None:
                    with pytest.raises(xs.PeerLostError):
                        await event.reached(1)

                async def kill() -> None:
                    await library.step()
                    child.kill()

                await library.all(wait, kill)

            asyncio.run(main()) if library is Asyncio else trio.run(main)
    assert waiting._waiters == {}


def test_closing_while_others_wait(event: xs.Event) -> None:
    """A close ends the waits of its object, and no others."""
    handle = xs.ipc.event.get(event)
    twin = xs.ipc.event.open(handle)

    async def main() -> None:
        closed, open_ = asyncio.create_task(twin.reached(1)), asyncio.create_task(event.reached(1))
        await asyncio.sleep(0)
        twin.close()
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            await asyncio.wait_for(closed, 10)
        event.signal()
        await asyncio.wait_for(open_, 10)

    asyncio.run(main())
    xs.ipc.event.put(handle)


def test_while_another_thread_imports_an_event_loop(event: xs.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is in `sys.modules` already, without most of its names."""
    event.signal()
    monkeypatch.setitem(sys.modules, "trio", types.ModuleType("trio"))
    asyncio.run(event.reached(1))
    monkeypatch.setitem(sys.modules, "asyncio", types.ModuleType("asyncio"))
    event.recovered(0)
