"""What an unlucky neighbour in the same process does: closed stdio, closed fds, sub-interpreters."""

import subprocess
import sys
import textwrap

import pytest


def program(text, *arguments, timeout=60, **options):
    command = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


@pytest.mark.parametrize("closed", ["0, 3", "1, 3", "2, 3", "0, 2", "1, 2"])
def test_no_fd_of_ours_is_stdio(closed):
    """Where a process began without stdio, anybody's print would go into our memory."""
    done = program(
        f"""
        import os, sys
        report = os.dup(1)
        os.closerange({closed})
        import xpushare as xs
        from xpushare import _native
        from xpushare.sharing import node
        memory = xs.malloc_device(4096, "native_cpu:0")
        event = xs.Event("native_cpu:0", enable_ipc=True)
        handles = xs.ipc.memory.get(memory), xs.ipc.event.get(event)
        _native.notification_fd()
        if os.fork() == 0:
            opened = xs.ipc.memory.open(handles[0]), xs.ipc.event.open(handles[1])
            opened[1].signal()
            mine = xs.ipc.memory.get(xs.malloc_device(4096, "native_cpu:0"))
            low = [fd for fd in range(*({closed})) if os.path.exists(f"/proc/self/fd/{{fd}}")]
            os._exit(len(low))
        status = os.waitstatus_to_exitcode(os.wait()[1])
        low = [fd for fd in range(*({closed})) if os.path.exists(f"/proc/self/fd/{{fd}}")]
        os.write(report, f"{{low}} {{status}} {{event.value}}".encode())
        os._exit(0)
        """
    )
    assert (done.stdout, done.returncode) == ("[] 0 1", 0), done.stderr


def test_a_wait_ends_when_something_closes_our_fds():
    done = program(
        """
        import os, resource, sys, threading, time, warnings
        import xpushare as xs
        event = xs.Event("native_cpu:0", enable_ipc=True)
        xs.ipc.event.get(event)
        told = []
        warnings.showwarning = lambda message, *_rest: told.append(str(message))
        ended = []
        def wait():
            try:
                event.wait(20, at_least=1)
            except xs.InvalidArgumentError as error:
                ended.append(str(error))
        waiting = [threading.Thread(target=wait) for _ in range(2)]
        for each in waiting:
            each.start()
        time.sleep(0.05)
        os.closerange(3, 1024)
        mine = os.open("/dev/null", os.O_RDWR)  # whose number this was
        start = time.process_time()
        for each in waiting:
            each.join(10)
        assert len(ended) == 2 and all("closerange" in each for each in ended), ended
        try:
            event.wait(1, at_least=1)
        except xs.InvalidArgumentError as error:
            assert "closerange" in str(error)
        try:
            xs.ipc.event.get(xs.Event("native_cpu:0", enable_ipc=True))
        except xs.XpuShareError:
            pass
        time.sleep(0.3)
        assert time.process_time() - start < 1, "something spins"
        assert len(told) == 1 and "closerange" in told[0], told
        os.fstat(mine)
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_warden_outlives_a_sub_interpreter():
    pytest.importorskip("_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters")
    done = program(
        """
        import sys
        if sys.version_info < (3, 13):
            import _xxsubinterpreters as interpreters
        else:
            import _interpreters as interpreters
        import os, time
        import xpushare as xs
        from pathlib import Path
        def wardens():
            return [task for task in Path("/proc/self/task").iterdir() if "warden" in (task / "comm").read_text()]
        def named():  # which a thread does a moment after it was started
            while not wardens():
                time.sleep(0.001)
            return True
        event = xs.Event("native_cpu:0", enable_ipc=True)
        handle = xs.ipc.event.get(event)
        assert named()
        other = interpreters.create("legacy") if sys.version_info >= (3, 13) else interpreters.create(isolated=False)
        failed = interpreters.run_string(other, '''
        from xpushare import _native
        _native.close_warden()  # as at its exit
        '''.replace(chr(10) + " " * 8, chr(10)))
        assert failed is None, failed
        interpreters.destroy(other)
        assert wardens()
        pid = os.fork()
        if pid == 0:
            opened = xs.ipc.event.open(handle)
            opened.signal()
            os._exit(opened.value)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_event_loops_learn_that_something_closed_our_fds(loop):
    done = program(
        """
        import asyncio, os, sys, trio, warnings
        import xpushare as xs
        loop = {"asyncio": asyncio, "trio": trio}[sys.argv[1]]
        event = xs.Event("native_cpu:0", enable_ipc=True)
        xs.ipc.event.get(event)
        told, ended = [], []
        warnings.showwarning = lambda message, *_rest: told.append(str(message))
        async def wait(_mine):
            for point in (5, 6):  # the second finds it out at once
                try:
                    await event.reached(point)
                except xs.InvalidArgumentError as error:
                    ended.append(str(error))
            if len(ended) == 4:
                assert len(told) == 1, told
                assert all("closerange" in each for each in ended), ended
                os._exit(0)
        def open_fds():
            return {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                    if os.path.lexists(f"/proc/self/fd/{fd}")}
        async def close(mine):
            await loop.sleep(0.05)
            for fd in map(int, mine):
                if fd > 2:
                    os.close(fd)
        async def with_asyncio(mine):
            await asyncio.wait_for(asyncio.gather(wait(mine), wait(mine), close(mine)), 20)
        async def with_trio(mine):
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    for each in (wait, wait, close):
                        nursery.start_soon(each, mine)
        mine = set(open_fds())  # the loop's own come later
        asyncio.run(with_asyncio(mine)) if loop is asyncio else trio.run(with_trio, mine)
        """,
        loop,
    )
    assert done.returncode == 0, done.stderr
