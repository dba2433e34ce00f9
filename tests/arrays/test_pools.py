"""Results and temporaries through pools and queues, under every start method: nobody keeps what is pickled."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool_work import Dropped, dropped, made, pid, send_many, total

import xpushare as xs
from harness import Child, kept
from sampling import sampled
from xpushare.core.pickles import wait_for_all
from xpushare.sharing import layout, node

METHODS = ("spawn", "forkserver", "fork")
MANY = range(1, 101)
MIB = 1 << 20

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")  # from 3.12 on


def through_executor(method: str) -> list[xs.SharedArray]:
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        return list(pool.map(made, MANY, timeout=100))


def through_pool(method: str) -> list[xs.SharedArray]:
    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map_async(made, MANY).get(100)


def through_queue(method: str, context: Any = multiprocessing) -> list[xs.SharedArray]:
    context = context.get_context(method)
    queue, received = context.Queue(), context.Event()
    process = context.Process(target=send_many, args=(queue, MANY, received))
    process.start()
    try:
        return [queue.get(timeout=100) for _ in MANY]
    finally:
        received.set()
        process.join(100)
        queue.close()
        queue.join_thread()


def through_torch(method: str) -> list[xs.SharedArray]:
    pytest.importorskip("torch")
    import torch.multiprocessing

    return through_queue(method, torch.multiprocessing)


def through_joblib(method: str) -> list[xs.SharedArray]:
    joblib = pytest.importorskip("joblib")
    if method != "spawn":
        pytest.skip("loky starts its workers in its own way")
    from joblib.externals.loky import get_reusable_executor

    with joblib.parallel_config("loky", n_jobs=2):
        found = joblib.Parallel()(joblib.delayed(made)(n) for n in MANY)
    get_reusable_executor().shutdown()
    return list(found)


@pytest.mark.parametrize("method", sampled(METHODS, ["forkserver"]))
@pytest.mark.parametrize("through", [through_executor, through_pool, through_queue, through_torch, through_joblib])
def test_a_hundred_results_arrive(through: Callable[[str], list[xs.SharedArray]], method: str) -> None:
    results = through(method)
    assert [total(each) for each in results] == [n * n for n in MANY], "also now that the exporters are gone"


@pytest.mark.parametrize("ended", sampled([True, False], [True]), ids=["after the first pool", "beside it"])
def test_a_result_goes_to_a_second_pool(ended: bool) -> None:
    context = multiprocessing.get_context("forkserver")
    with contextlib.ExitStack() as pools:
        first = pools.enter_context(context.Pool(1))
        results = first.map(made, range(1, 11))
        first.map(made, range(1, 11))  # the exporter's next calls, which end what is over
        if ended:
            pools.close()
        with context.Pool(2) as second:
            mapped = second.map(add_one, [results.pop() for _ in range(10)])
            assert [total(each) for each in mapped] == [n * n + n for n in range(10, 0, -1)]


def add_one(array: xs.SharedArray) -> xs.SharedArray:
    """Passes on what may have been passed on."""
    values = np.asarray(array)
    values += 1
    return array


@pytest.mark.parametrize("method", sampled(METHODS, ["spawn"]))
def test_temporary_arguments(method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.apply_async(total, (made(5),)).get(60) == 25
        assert pool.map_async(total, [made(n) for n in range(1, 11)]).get(60) == [n * n for n in range(1, 11)]
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        assert executor.submit(total, made(7)).result(60) == 49


def test_thousands_of_temporaries_do_not_fill_the_machine() -> None:
    """Those that workers take arrive, and their memory comes back."""
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        pool.map(pid, range(2))
        most = 0
        pending = []
        for n in range(1000):
            pending.append(pool.apply_async(total, (xs.zeros(MIB, "u1"),)))
            if n % 10 == 9:
                assert [each.get(60) for each in pending] == [0.0] * 10
                pending.clear()
                most = max(most, held_nbytes())
        assert most < 100 * MIB
    xs.trim()
    assert held_nbytes() < 10 * MIB


def held_nbytes() -> int:
    """What this process holds in memfds."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "memfd:xpushare-memory" in os.readlink(f"/proc/self/fd/{fd}"):
                found += os.stat(f"/proc/self/fd/{fd}").st_size
    return found


@pytest.fixture
def nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier tests' pickles that nobody has opened end."""
    table = node.current().table()
    waiting = [each.handle for each in table.exports() if each.implicit and table.domain.opens_left(each.entry)]
    table.withdraw_all(waiting, layout.REASON_FREED)
    monkeypatch.setattr(table, "_waiting", {})
    monkeypatch.setattr(table, "_waiting_fds", 0)


def dumped_until_refused(make: Callable[[], Any], most: int) -> list[bytes]:
    pickles: list[bytes] = []
    try:
        while len(pickles) < most:
            pickles.append(pickle.dumps(make()))
    except xs.OutOfMemoryError:
        return pickles
    raise AssertionError("nothing was refused")


@pytest.mark.usefixtures("nothing_waits")
def test_what_nobody_opens_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, peer: Child) -> None:
    monkeypatch.setenv("XPUSHARE_PICKLE_BYTES", str(64 * MIB))
    before = held_nbytes()
    pickles = dumped_until_refused(lambda: xs.empty(MIB, "u1"), 1000)
    assert len(pickles) == 64
    assert held_nbytes() - before <= 65 * MIB
    assert peer.call(open_all, pickles) == [True] * 64, "what waits within its grace stays"
    pickle.dumps(xs.empty(MIB, "u1"))  # there is room again
    peer.call(kept.clear)


@pytest.mark.usefixtures("nothing_waits")
def test_a_message_is_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch, peer: Child) -> None:
    monkeypatch.setenv("XPUSHARE_PICKLE_BYTES", str(8 * MIB))
    before = held_nbytes()
    first = pickle.dumps([xs.empty(MIB, "u1") for _ in range(4)])
    for _ in range(3):  # a refused message keeps nothing, so it can be tried again and again
        with pytest.raises(xs.OutOfMemoryError, match="until it is opened, and earlier"):
            pickle.dumps([xs.empty(MIB, "u1") for _ in range(5)])
    last = pickle.dumps([xs.empty(MIB, "u1") for _ in range(4)])
    xs.trim()
    assert held_nbytes() - before <= 8 * MIB
    assert peer.call(open_lists, [first, last]) == [True] * 8
    peer.call(kept.clear)


def open_lists(pickles: list[bytes]) -> list[bool]:
    arrays = kept["arrays"] = [each for data in pickles for each in pickle.loads(data)]
    return ["not opened" not in repr(each) for each in arrays]


FEW_DESCRIPTORS = """
import logging, os, pickle, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import xpushare as xs
small = pickle.dumps([xs.array([n]) for n in range(700)])
kept = []
try:
    for _ in range(500):
        kept.append(pickle.dumps(xs.empty(100, isolated=True)))
except xs.OutOfMemoryError as error:
    assert "64 are kept, half of `ulimit" in str(error), error
print(len(kept), flush=True)
print(small.hex(), *[each.hex() for each in kept], sep=chr(10), flush=True)
input()
"""


def test_what_nobody_opens_is_bounded_in_descriptors() -> None:
    """700 small arrays lie in a few allocations, and so take a few descriptors."""
    arguments = [sys.executable, "-c", FEW_DESCRIPTORS]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        count = int(process.stdout.readline())
        assert 32 < count <= 64
        small, *others = [pickle.loads(bytes.fromhex(process.stdout.readline())) for _ in range(1 + count)]
        assert [np.asarray(each).tolist() for each in small] == [[n] for n in range(700)]
        assert all("not opened" not in repr(each) for each in others)
        process.communicate("\n")


def put_batches(queue: Any, error: Any, told: Any) -> None:
    sys.stderr = os.fdopen(os.dup(error.fileno()), "w")
    os.environ["XPUSHARE_PICKLE_BYTES"] = str(4 * MIB)
    queue.put([made_of(1) for _ in range(3)])
    queue.put([made_of(2) for _ in range(3)])
    queue.put([made_of(3)])
    queue.put("end")
    queue.close()
    queue.join_thread()
    told.send("all are pickled")


def made_of(value: int) -> xs.SharedArray:
    array = xs.zeros(MIB, "u1")
    np.asarray(array)[:] = value
    return array


def test_a_queue_drops_a_message_that_is_refused_and_says_so() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    reading, writing = context.Pipe(duplex=False)
    told, tell = context.Pipe(duplex=False)
    process = context.Process(target=put_batches, args=(queue, writing, tell))
    process.start()
    assert told.recv() == "all are pickled"
    found = [*iter(queue.get, "end")]
    assert [[int(np.asarray(each)[0]) for each in batch] for batch in found] == [[1] * 3, [3]]
    process.join(60)
    said = os.read(reading.fileno(), 1 << 16).decode()
    assert "OutOfMemoryError: this message is not pickled" in said


def open_all(pickles: list[bytes]) -> list[bool]:
    arrays = kept["arrays"] = [pickle.loads(data) for data in pickles]
    return ["not opened" not in repr(each) for each in arrays]


def test_pieces_of_one_allocation_count_once(monkeypatch: pytest.MonkeyPatch, peer: Child) -> None:
    monkeypatch.setenv("XPUSHARE_PICKLE_BYTES", str(MIB))
    memory = xs.malloc_device(2 * MIB, "native_cpu:0")
    pickles = [pickle.dumps(memory.as_array(10, "u1", n)) for n in range(200)]
    assert peer.call(open_all, pickles) == [True] * 200
    peer.call(kept.clear)


def test_what_has_expired_kills_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a grace pickles end with their objects, and each use of what came says so."""
    monkeypatch.setenv("XPUSHARE_PICKLE_GRACE", "0")
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        (before,) = pool.map(pid, [0])
        with pytest.raises(xs.HandleExpiredError, match="keep what you pickle"):
            pool.apply_async(total, (Dropped(),)).get(60)
        assert pool.map(pid, [0]) == [before]
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        result = executor.submit(dropped, 3).result(60)
        with pytest.raises(xs.HandleExpiredError, match="keep what you pickle"):
            total(result)
        assert executor.submit(total, made_and_kept(3)).result(60) == 9
    kept.clear()


def made_and_kept(n: int) -> xs.SharedArray:
    array = kept["array"] = made(n)
    return array


def test_each_use_says_why(peer: Child) -> None:
    data = peer.call(_pickle_without_grace)
    array = pickle.loads(data)
    queue = xs.Queue("native_cpu:0")
    good = xs.empty(4)
    assert isinstance(array, xs.SharedArray)
    assert not array.closed
    uses = (
        lambda: array.shape, lambda: array.dtype, lambda: array.strides, lambda: array.nbytes, lambda: array.device,
        lambda: array.memory, lambda: array.handle, lambda: array.is_imported, lambda: np.asarray(array),
        array.__dlpack__, lambda: memoryview(array), lambda: xs.share(array), lambda: xs.array(array),
        lambda: queue.copy(array, good), lambda: queue.copy(good, array), lambda: queue.fill(array, b"a"),
        array.__enter__,
    )  # fmt: skip
    for use in uses:
        with pytest.raises(xs.HandleExpiredError, match="keep what you pickle"):
            use()
    assert "not opened" in repr(array)
    assert pickle.dumps(array) == data, "whoever only passes it on need not open it"
    array.close()
    assert array.closed
    for use in uses:
        with pytest.raises(xs.InvalidArgumentError, match="closed"):
            use()


def _pickle_without_grace() -> bytes:
    os.environ["XPUSHARE_PICKLE_GRACE"] = "0"
    try:
        return pickle.dumps(made(4))
    finally:
        del os.environ["XPUSHARE_PICKLE_GRACE"]


def test_the_entry_decides_when_a_pickle_expires(peer: Child) -> None:
    """Openers see the deadline, though the exporter makes no call."""
    data = peer.call(_pickle_once, "0.3", 2)
    deadline = time.monotonic() + 0.3
    with contextlib.suppress(xs.HandleExpiredError):  # where this machine is very slow
        assert total(pickle.loads(data)) == 16
    wait_until(deadline)
    with pytest.raises(xs.HandleExpiredError, match="XPUSHARE_PICKLE_GRACE"):
        total(pickle.loads(data))
    assert peer.call(_swept) == 0


def _pickle_once(grace: str, times: int = 1) -> bytes:
    os.environ["XPUSHARE_PICKLE_GRACE"] = grace
    try:
        array = made(4)
        (data,) = {pickle.dumps(array) for _ in range(times)}
        return data
    finally:
        del array
        del os.environ["XPUSHARE_PICKLE_GRACE"]


def _swept() -> int:
    xs.empty(1)
    return node.current().table().statistics()["exports"]


def wait_until(deadline: float) -> None:
    while time.monotonic() <= deadline:
        time.sleep(0.01)


def test_passing_on_renews(peer: Child, other: Child) -> None:
    first = peer.call(_pickle_once, "3")  # long enough for a machine that is busy
    deadline = time.monotonic() + 3
    with pickle.loads(first) as mine:
        wait_until(deadline)
        again = pickle.dumps(mine)  # the first exporter's time is over, this one's begins
        peer.call(_swept)
        assert other.call(_total_of, again) == 16
        third = pickle.dumps(mine)
    peer.call(_swept)
    assert other.call(_total_of, third) == 16, "also once it is closed here"
    assert peer.call(_swept) == 0


def _total_of(data: bytes) -> float:
    return total(pickle.loads(data))


@pytest.mark.parametrize("device", ["native_cpu:0", "mock:0"])
def test_an_import_is_exported_anew_once_its_exporter_is_gone(peer: Child, device: str) -> None:
    with Child() as first:
        memory, array = (pickle.loads(each) for each in first.call(_pickle_memory_and_array, device))
        assert bytes(memoryview(array)) == bytes(range(8))  # so its exporter owes nothing any more
        first.kill()
    for sent in memory.slice(8, 16), array, memory:
        pickle.dumps(sent)
        exports = memory.statistics()["exports"]
        data = pickle.dumps(sent)
        assert len(memory.statistics()["exports"]) == len(exports) > 0, "one export an object"
        content = bytes(memoryview(sent))
        assert peer.call(_increment, data) == content
        assert bytes(memoryview(sent))[:1] == bytes([content[0] + 1]), "the same memory"
    data = pickle.dumps(array)
    array.close()
    memory.close()
    del sent
    gc.collect()
    assert peer.call(_increment, data) == bytes([2, *range(1, 8)])


def _pickle_memory_and_array(device: str) -> tuple[bytes, bytes]:
    memory = xs.malloc_device(24, device)
    memoryview(memory)[8:16] = bytes(range(8))
    return pickle.dumps(memory), pickle.dumps(memory.as_array(8, "u1", 8))


def test_what_cannot_be_exported_anew_is_passed_on_as_it_came(peer: Child, caplog: pytest.LogCaptureFixture) -> None:
    with Child() as first:
        memory = xs.ipc.memory.open(first.call(_export))
        event = pickle.loads(first.call(lambda: pickle.dumps(xs.Event("native_cpu:0", enable_ipc=True))))
        first.kill()
    for sent in memory, event:
        pickle.dumps(sent)
        with pytest.raises(xs.HandleExpiredError, match="has exited"):
            peer.call(_use, pickle.dumps(sent))
        assert caplog.text.count(f"{sent!r} is gone, and it cannot be exported from here: ") == 1, caplog.text


def _export() -> bytes:
    kept["memory"] = xs.malloc_device(24, "native_cpu:0")
    return bytes(xs.ipc.memory.get(kept["memory"]))


def _use(data: bytes) -> None:
    pickle.loads(data).__enter__()


def _increment(data: bytes) -> bytes:
    with memoryview(pickle.loads(data)) as view:
        found = bytes(view)
        view[0] += 1
    return found


def test_waiting_for_pickles() -> None:
    with Child() as exporter:
        exporter.call(lambda: kept.update(array=made(3)))
        live, dropped = exporter.call(lambda: (pickle.dumps(kept["array"]), pickle.dumps(made(4))))
        assert exporter.call(_waited, 0.2) >= 0.2
        assert total(pickle.loads(dropped)) == 16
        assert exporter.call(_waited, 0.2) >= 0.2
        waiting = exporter.start(_waited, 60)
        assert total(pickle.loads(live)) == 9
        assert waiting.result() < 30
        exporter.call(_pickle_once, "0.2")
        assert 0 < exporter.call(_waited, 60) < 30, "what has expired is not waited for"


def _waited(seconds: float) -> float:
    start = time.monotonic()
    wait_for_all(start + seconds)
    return time.monotonic() - start


EXITS = """
import pickle, sys
import xpushare as xs
array = xs.array([1, 2, 3])
print(pickle.dumps(array).hex(), flush=True)
del array
sys.exit(3)
"""


@pytest.mark.parametrize("linger", ["60", "0"])
def test_a_clean_exit_lingers_for_what_nobody_has_opened(linger: str) -> None:
    environ = os.environ | {"XPUSHARE_LINGER": linger}
    with subprocess.Popen([sys.executable, "-c", EXITS], stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        pickled = bytes.fromhex(process.stdout.readline())
        if linger == "0":
            assert process.wait(60) == 3
            received = pickle.loads(pickled)
            with pytest.raises(xs.HandleExpiredError):
                np.asarray(received)
            return
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        with pickle.loads(pickled) as received:
            assert np.asarray(received).tolist() == [1, 2, 3]
        assert process.wait(30) == 3


def test_a_clean_exit_that_lingers_in_vain_says_so() -> None:
    environ = os.environ | {"XPUSHARE_LINGER": "0.1"}
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, env=environ, timeout=60)
    assert done.returncode == 3
    assert "exits before all of its pickles have been opened (XPUSHARE_LINGER): the memory of the oth" in done.stderr


KILLS = """
import concurrent.futures, multiprocessing, os, signal, sys, time
from pool_work import made, total
from xpushare.sharing import node

def say_and_sleep(path):
    with open(f"{path}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{path}.new", path)
    time.sleep(1000)

def said_in(path):
    while not os.path.exists(path) or not node.current().table().waiting_pickles():
        time.sleep(0.01)
    with open(path) as file:
        return int(file.read())

def refused(future):
    try:
        future.result(60)
    except concurrent.futures.process.BrokenProcessPool:
        return True

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    busy = sys.argv[1]
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        executor.submit(say_and_sleep, busy)
        future = executor.submit(total, made(3))
        os.kill(said_in(busy), signal.SIGKILL)
        assert refused(future)
    print(len(node.current().table().waiting_pickles()))
"""


def test_a_clean_exit_does_not_linger_for_workers_that_were_killed(tmp_path: Path) -> None:
    """Nobody is left who could open what was sent to them."""
    program = tmp_path / "program.py"
    program.write_text(KILLS)
    environ = os.environ | {"XPUSHARE_LINGER": "600", "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, str(program), str(tmp_path / "busy")]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, env=environ, timeout=50)
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_a_clean_exit_says_at_once_what_it_waits_for() -> None:
    environ = os.environ | {"XPUSHARE_LINGER": "600"}
    with subprocess.Popen(
        [sys.executable, "-c", EXITS], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert f"process {process.pid} waits up to " in said
        assert " s at its exit for 1 pickle (" in said
        assert "Ctrl-C ends the wait" in said
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 3


def test_a_clean_exit_ends_objects_that_live_to_the_end() -> None:
    """After the grace their pickles are not good any more, so nothing is left to linger for."""
    environ = os.environ | {"XPUSHARE_LINGER": "600", "XPUSHARE_PICKLE_GRACE": "0.1"}
    code = EXITS.replace("del array", "")
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=environ, timeout=60).returncode == 3
    )


@pytest.mark.parametrize("name", ["XPUSHARE_PICKLE_GRACE", "XPUSHARE_PICKLE_BYTES"])
@pytest.mark.parametrize("value", ["soon", "-1", "nan", "1e999"])
def test_settings_that_make_no_sense(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with xs.empty(1) as array, pytest.raises(xs.InvalidArgumentError, match=name):
        pickle.dumps(array)


def test_a_grace_that_is_longer_than_any_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPUSHARE_PICKLE_GRACE", "1e300")
    with xs.empty(1) as array:
        data = pickle.dumps(array)
    with pickle.loads(data) as again:
        assert again.shape == (1,)
