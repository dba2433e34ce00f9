"""`xpushare metrics`: what Prometheus gets is what `xpushare top` shows."""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import xpushare as xs
from harness import Child, command, wait_until
from xpushare.cli import metrics
from xpushare.cli.metrics import Server
from xpushare.cli.top import Look

prometheus = pytest.importorskip("prometheus_client")


def values(text: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Metric -> labels -> value."""
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of a server that has begun."""
    command = [sys.executable, "-m", "xpushare", "metrics", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            match = re.search(r"http://\S+", line)
            assert match, line
            yield match[0]
        finally:
            process.terminate()


def export(label: str) -> None:
    event = xs.Event("native_cpu:0", enable_ipc=True, label=label)
    event.signal()
    event.signal()
    xs.publish(label, event)
    xs.publish(f"{label}.array", xs.zeros(1 << 20, "u1"))
    channel = xs.Channel.create(label, 3)
    channel.send([1.0, 2.0, 3.0])
    globals()["_kept"] = event, channel


def test_a_scrape() -> None:
    with Child() as child, served() as address:
        label = f"metrics-{child.pid}"
        child.call(export, label)
        with urllib.request.urlopen(address, timeout=60) as reply:
            found = values(reply.read().decode())
        mine = ("pid", str(child.pid))
        device = ("device", xs.Device("native_cpu:0").uuid)
        event = frozenset({mine, device, ("kind", "event"), ("state", "shared"), ("names", label), ("label", label)})
        assert found["xpushare_event_signals_total"][event] == 2
        assert found["xpushare_event_pending"][event] == 0
        array = frozenset(
            {mine, device, ("kind", "memory"), ("state", "shared"), ("names", f"{label}.array"), ("label", "")}
        )
        assert found["xpushare_object_bytes"][array] == 1 << 20
        assert found["xpushare_channel_frames_sent_total"][frozenset({("channel", label), device})] == 1


def test_clients_that_do_not_go_on_silence_nobody() -> None:
    """More of them than the server serves at once: silent ones, slow ones, and those that do not read the answer."""
    with served() as address:
        host, port = re.findall(r"//(.+):(\d+)/", address)[0]
        clients = [socket.create_connection((host, int(port)), 30) for _ in range(150)]
        for each in clients[::3]:
            each.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        for each in clients[1::3]:
            each.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        for _ in range(2):
            with urllib.request.urlopen(address, timeout=60) as reply:
                assert b"xpushare_objects" in reply.read()
        assert clients[0].recv(1) == b""  # one of the oldest, of too many
        for each in clients:
            each.close()


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(1000):
                self.wfile.write(bytes(1 << 20))

    def log_message(self, *_arguments: Any) -> None:
        pass


def test_a_connection_has_a_time_limit() -> None:
    with Server("127.0.0.1", 0, _Answer, seconds=0.2) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            for begin in (b"", b"GET / HT", b"GET / HTTP/1.0\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", server.port), 30) as client:
                    client.sendall(begin)
                    wait_until(lambda: not [each for each in threading.enumerate() if "process_request" in each.name])
        finally:
            server.shutdown()
            serving.join()


def row(**more: Any) -> dict[str, Any]:
    alike = {
        "kind": "event", "state": "shared", "exporter": 7, "device": "d", "backend": "b", "names": [], "label": "x",
        "nbytes": 0, "importers": [8], "handles": 1, "age": 3, "value": 2, "pending": 5,
    }  # fmt: skip
    return {**alike, **more}


def test_objects_that_are_alike_are_one_line() -> None:
    look = Look(0.0, [row(), row(value=4, pending=4, age=9)], [])
    found = {name: list(numbers.values()) for name, _, _, _, numbers in metrics.samples(look)}
    assert found["xpushare_objects"] == [2]
    assert found["xpushare_event_signals"] == [6]
    assert found["xpushare_event_pending"] == [3]
    assert found["xpushare_oldest_export_seconds"] == [9]
    assert found["xpushare_channel_lag"] == []


def test_once() -> None:
    done = command("metrics")
    assert done.returncode == 0
    assert "# TYPE xpushare_objects gauge" in done.stdout


def test_a_used_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        address = f"127.0.0.1:{used.getsockname()[1]}"
        done = command("metrics", "--listen", address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"xpushare: Address already in use: {address}\n"


@pytest.mark.parametrize("address", ["9464", "host:", "host:99999"])
def test_wrong_addresses(address: str) -> None:
    done = command("metrics", "--listen", address)
    assert done.returncode == 2
    assert "HOST:PORT" in done.stderr


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    from xpushare import cli

    assert cli.main(["metrics"]) == 1
    assert "pip install '.[metrics]' in a checkout of xpushare" in capsys.readouterr().err
