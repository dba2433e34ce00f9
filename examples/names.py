"""Processes that find each other's arrays by name, in whatever order they start; a dead one leaves no name behind."""

import multiprocessing
import os
import signal

import numpy as np

import xpushare as xs

NAME = f"example-{os.getpid()}"


def provide(name: str, stop: str) -> None:
    array = xs.empty(4)
    np.asarray(array)[:] = os.getpid()
    done = xs.Event("native_cpu:0", enable_ipc=True)
    xs.publish(name, array)
    xs.publish(stop, done)
    done.wait(60, at_least=1)


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    first = spawn.Process(target=provide, args=(NAME, f"{NAME}.stop"))
    first.start()
    handle = xs.lookup(NAME, timeout=60)  # waits until the other process is there
    with xs.attach(handle) as array:
        assert np.asarray(array).tolist() == [first.pid] * 4
    assert NAME in xs.published()

    try:
        xs.publish(NAME, xs.empty(1))
    except xs.InvalidArgumentError as error:
        print(f"a name has one owner: {error}")
    else:
        raise AssertionError("a name was published twice")

    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    assert NAME not in xs.published(), "a dead process still has its name"

    second = spawn.Process(target=provide, args=(NAME, f"{NAME}.stop"))
    second.start()
    with xs.attach(xs.lookup(NAME, timeout=60)) as array:
        assert np.asarray(array)[0] == second.pid
    with xs.ipc.event.open(bytes(xs.lookup(f"{NAME}.stop", timeout=60))) as stop:
        stop.signal()
    second.join()
    assert second.exitcode == 0
    assert NAME not in xs.published()
    print("the name went with the process that was killed, was taken by the next one, and went with its end")


if __name__ == "__main__":
    main()
