"""Workers of a web server that read one copy of the weights: gunicorn with and without --preload, uvicorn --workers.

The keeper (here: this program) holds the weights and publishes them; each worker looks them up at its first request,
so after any fork. A new version reaches the workers without a restart.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import xpushare as xs

NAME = os.environ.get("WEIGHTS", f"web-{os.getpid()}")
WORKERS = 2


class Weights:
    """The newest weights, in whichever process asks: what a parent opened is not used in its children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._handle: Any = None
        self._array: Any = None

    def get(self) -> np.ndarray:
        with self._lock:
            handle = xs.lookup(NAME, timeout=10)
            if self._pid != os.getpid() or handle != self._handle:
                self._array = xs.attach(handle)
                self._pid, self._handle = os.getpid(), handle
            return np.asarray(self._array)


weights = Weights()


def answer() -> bytes:
    found = weights.get()
    return json.dumps({"pid": os.getpid(), "version": float(found[0]), "sum": float(found.sum())}).encode()


def wsgi(_environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "application/json")])
    return [answer()]


async def asgi(scope: dict[str, Any], _receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer()})


def ask(port: int) -> dict[str, Any]:
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as reply:
                found: dict[str, Any] = json.load(reply)
                return found
        except OSError:
            time.sleep(0.1)  # the server has not started yet
    raise AssertionError("no answer")


def publish(version: int) -> None:
    xs.publish(NAME, xs.array(np.full(1000, version, "float32")), replace=True)


def serve(title: str, *command: str) -> None:
    """Start a server, ask until every worker has answered, publish a new version, kill a worker, ask again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    publish(1)
    environment = {
        **os.environ,
        "WEIGHTS": NAME,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    server = subprocess.Popen([sys.executable, "-m", *(each.format(port=port) for each in command)], env=environment)
    try:
        first = until_all_answer(port, 1)
        publish(2)
        until_all_answer(port, 2)
        os.kill(first.pop(), signal.SIGKILL)  # the server starts another; the weights are still there
        until_all_answer(port, 2)
    finally:
        server.terminate()
        server.wait(30)
    print(f"{title}: each worker read both versions, and so did one that was started later")


def until_all_answer(port: int, version: int) -> set[int]:
    pids: set[int] = set()
    end = time.monotonic() + 60  # a worker may still be starting while another one answers
    while time.monotonic() < end:
        found = ask(port)
        if found["version"] == version:
            assert found["sum"] == 1000 * version
            pids.add(found["pid"])
            if len(pids) >= WORKERS:
                return pids
    raise AssertionError(f"only {pids} answered")


def main() -> None:
    gunicorn = ("-w", str(WORKERS), "-b", "127.0.0.1:{port}", "--log-level", "error", "web_workers:wsgi")
    uvicorn = ("--workers", str(WORKERS), "--port", "{port}", "--log-level", "error", "web_workers:asgi")
    servers = {
        "gunicorn": ("gunicorn", *gunicorn),
        "gunicorn --preload": ("gunicorn", "--preload", *gunicorn),
        "uvicorn": ("uvicorn", *uvicorn),
    }
    publish(1)
    for title, command in servers.items():
        if find_spec(command[0]) is None:
            print(f"{title}: not installed, left out")
        else:
            serve(title, *command)
    xs.unpublish(NAME)


if __name__ == "__main__":
    main()
