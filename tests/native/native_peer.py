"""Other processes for the tests of the native part: each evaluates what the test sends it, one expression at a time."""

import contextlib
import ctypes
import fcntl
import importlib.util
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"


def load_native():
    """The built module: the installed one, or the one that XPUSHARE_TEST_NATIVE names (with a sanitizer, say)."""
    path = os.environ.get("XPUSHARE_TEST_NATIVE")
    if path is None:
        import xpushare.sharing.handle  # noqa: F401 - registers the class of handles
        from xpushare import _native
    else:
        spec = importlib.util.spec_from_file_location("xpushare._native", path)
        _native = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_native)
    return _native


n = load_native()
AT = n.LAYOUT


def until(condition, timeout=60.0):
    """Wait for a condition that another process or thread brings about."""
    end = time.monotonic() + timeout
    while not (got := condition()):
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.0005)
    return got


def load32(address):
    return ctypes.c_uint32.from_address(address).value


def store32(address, value):
    ctypes.c_uint32.from_address(address).value = value


def unlock(fd, at):
    fcntl.lockf(fd, fcntl.LOCK_UN, 1, at)


def thread_running(name):
    """Whether this process has a thread of that name, which it takes a moment after it was started."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            if task.joinpath("comm").read_text() == f"{name}\n":
                return True
    return False


def warden_running():
    return thread_running("xpushare-warden")


def relay_running():
    return thread_running("xpushare-relay")


def make_commons(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL, size=None):
    fd = os.memfd_create("xpushare-commons", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, AT["commons.size"] if size is None else size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


class Device:
    """Stands for a GPU: one stream, whose operations a thread does in order; it polls for words as a GPU does."""

    WORD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint)
    HOST = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p)
    CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    def __init__(self):
        self.work = queue.SimpleQueue()
        self.go = threading.Event()  # cleared: the device is held up
        self.go.set()
        self.done = 0
        self.queued = 0
        self.calls = []
        self.functions = (
            self.WORD(lambda _stream, at, value, _flags: self.put("write", n.store64, at, value)),
            self.WORD(lambda _stream, at, value, _flags: self.put("wait", self.poll, at, value)),
            self.HOST(lambda _stream, function, data: self.put("host", self.CALL(function), data)),
        )
        threading.Thread(target=self.run, daemon=True).start()

    def stream_queue(self, number):
        write, wait, host = (ctypes.cast(f, ctypes.c_void_p).value for f in self.functions)
        word = ("queue", "address", "point", 0)
        return n.StreamQueue(
            number, 0, n.QueueCalls((host, ("queue", "function", "data")), (write, word), (wait, word))
        )

    def put(self, name, function, *arguments):
        self.calls.append(name)
        self.queued += 1
        self.work.put((function, arguments))
        return 0

    def poll(self, at, value):
        while n.load64(at) < value:
            time.sleep(0.0002)

    def run(self):
        while True:
            function, arguments = self.work.get()
            self.go.wait()
            function(*arguments)
            self.done += 1

    def idle(self):
        return self.done == self.queued

    def passed(self):
        until(self.idle)
        return True


class Handle(n.HandleState):
    """Stands in for `xpushare.ipc.Handle`."""

    __slots__ = ()


if "XPUSHARE_TEST_NATIVE" in os.environ:
    n.register(Handle=Handle)


class Exporter:
    """The owner's side of a commons, in this process."""

    def __init__(self):
        self.cookie = os.urandom(16)
        fd = make_commons()
        bell = n.OwnedFd.bell().take()
        self.domain = n.Domain(fd, bell, self.cookie, True)

    def word(self, slot, name, size=4):
        address = self.domain.address + AT["commons.slots"] + slot * AT["slot.size"] + AT["slot." + name]
        return load32(address) if size == 4 else n.load64(address)

    def peer(self, slot=None):
        p = Peer([self.domain.fd, self.domain.bell])
        try:
            p.run(f"d = n.Domain({self.domain.fd}, {self.domain.bell}, {self.cookie!r}, False)")
            if slot is not None:
                p.run(f"s = n.Slot(d, {slot})")
        except BaseException:
            p.close()
            raise
        return p


class Peer:
    """A process with `n` (the module) and `os` in its namespace."""

    def __init__(self, fds=(), preexec_fn=None, prefix=()):
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-X", "faulthandler", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=fds,
            preexec_fn=preexec_fn,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.pid = self.process.pid

    def send(self, code):
        pickle.dump(code, self.process.stdin)
        self.process.stdin.flush()

    def result(self, timeout=20.0):
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        assert ready, "the peer does not answer"
        ok, value = pickle.load(self.process.stdout)
        if not ok:
            raise value
        return value

    def run(self, code, timeout=20.0):
        self.send(code)
        return self.result(timeout)

    def kill(self):
        self.process.kill()
        self.process.wait(20)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT) if self.process.poll() is None else None
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()

    def exit(self):
        """A clean end of the interpreter."""
        self.process.stdin.close()
        return self.process.wait(20)


def serve_test():
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    namespace = {
        "n": n,
        "store32": store32,
        "unlock": unlock,
        "os": os,
        "Device": Device,
        "AT": AT,
        "until": until,
        "time": time,
        "signal": signal,
    }
    while True:
        try:
            code = pickle.load(source)
        except EOFError:
            return
        try:
            try:
                compiled = compile(code, "<test>", "eval")
            except SyntaxError:
                exec(compile(code, "<test>", "exec"), namespace)
                answer = (True, None)
            else:
                answer = (True, eval(compiled, namespace))
        except BaseException as error:  # also KeyboardInterrupt: that is what a test may be after
            answer = (False, error)
        pickle.dump(answer, sink)
        sink.flush()


if __name__ == "__main__":
    serve_test()
