"""Serve metrics of shared objects to Prometheus, or print them once.

The values are those of `xpushare top`. Their labels are the process, the device, the published name, and the label that
a program gave an object. Objects with equal labels become one line with the sum of their values. The command needs the
extra `metrics` (prometheus-client).

  xpushare metrics --listen 127.0.0.1:9464    serves http://127.0.0.1:9464/metrics until Ctrl-C
  xpushare metrics                            prints the same once, for a file that node_exporter reads
"""

from __future__ import annotations

import argparse
import resource
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from xpushare.cli.top import Look, look

__all__ = ["Server", "add_arguments", "run"]

# --- the server -------------------------------------------------------------------------------------------------------

_SECONDS: Final = 10.0  # from accepting a connection to the end of its answer
_MOST: Final = 100  # open connections
_BACKLOG: Final = 128


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves each connection in a thread of its own, by a handler class of `http.server`.

    A connection that takes longer than `seconds` is closed, whether its client is silent, sends slowly, or does not
    read. If there are too many connections, the oldest is closed.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(self, host: str, port: int, handler: Any, seconds: float = _SECONDS) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        address: Any
        self.address_family, *_, address = found[0]
        self._seconds = seconds
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = _MOST if limit == resource.RLIM_INFINITY else min(_MOST, limit // 4)
        self._open: dict[socket.socket, float] = {}  # when each was accepted, the oldest first; of the serving thread
        super().__init__(address, handler)
        self.port: int = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open[request] = time.monotonic()
        self._end_overdue()
        super().process_request(request, client_address)

    def service_actions(self) -> None:  # several times a second
        self._end_overdue()

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for each, since in list(self._open.items()):
            if each.fileno() < 0:  # its thread has closed it
                del self._open[each]
            elif now - since > self._seconds or len(self._open) > self._most:
                del self._open[each]
                try:
                    each.shutdown(socket.SHUT_RDWR)  # its thread ends, whatever it waits for
                except OSError:
                    pass  # the client has closed it

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        error = sys.exception()
        if not isinstance(error, OSError):  # otherwise the client is gone, or was too slow
            print(f"xpushare: a request failed: {error!r}", file=sys.stderr)


# --- the metrics ------------------------------------------------------------------------------------------------------

_OBJECT: Final = "kind", "state", "pid", "device", "names", "label"
_CHANNEL: Final = "channel", "device"
_END: Final = "channel", "pid", "label", "does", "device"


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        type=_address,
        metavar="HOST:PORT",
        help="serve the figures on this address; port 0 picks a free one",
    )


def _objects(rows: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for row in rows:
        device = row["device"] or row["backend"] or ""
        labels = row["kind"], row["state"], row["exporter"], device, " ".join(row["names"]), row["label"]
        yield tuple(map(str, labels)), row


def _ends(channels: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for each in channels:
        for end in each["members"]:
            does = "+".join((["writes"] if end["writes"] else []) + ([end["mode"]] if end["mode"] else []))
            yield (each["name"] or "", str(end["pid"]), end["label"], does, each["device"]), end


def _channels(channels: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for each in channels:
        yield (each["name"] or "", each["device"]), each


# Name, help, kind, labels, where the values come from, how to read a value, how to combine values of equal labels.
_FAMILIES: Final[tuple[tuple[str, str, str, tuple[str, ...], str, Callable[[dict[str, Any]], Any], Any], ...]] = (
    ("objects", "Objects that are shared", "gauge", _OBJECT, "rows", lambda _: 1, sum),
    ("object_bytes", "Bytes of the objects", "gauge", _OBJECT, "rows", lambda row: row["nbytes"], sum),
    ("object_importers", "Processes that have the objects open", "gauge", _OBJECT, "rows",
     lambda row: len(row["importers"]), sum),
    ("object_handles", "Handles that open the objects", "gauge", _OBJECT, "rows", lambda row: row["handles"], sum),
    ("oldest_export_seconds", "Age of the oldest export that is not closed", "gauge", _OBJECT, "rows",
     lambda row: row["age"], max),
    ("event_signals", "Signals of events that have completed", "counter", _OBJECT, "rows",
     lambda row: row["value"], sum),
    ("event_pending", "Signals of events that are submitted and not complete", "gauge", _OBJECT, "rows",
     lambda row: None if row["value"] is None else max(row["pending"] - row["value"], 0), sum),
    ("channel_frames_sent", "Frames sent", "counter", _CHANNEL, "channels", lambda each: each["sent"], sum),
    ("channel_bytes", "Bytes of the slots", "gauge", _CHANNEL, "channels", lambda each: each["nbytes"], sum),
    ("channel_frames_received", "Frames that a reader has received", "counter", _END, "ends",
     lambda end: end["received"] if end["mode"] else None, sum),
    ("channel_lag", "Frames between a reader and the newest", "gauge", _END, "ends",
     lambda end: end["lag"] if end["mode"] else None, sum),
    ("channel_frames_missed", "Frames overwritten before a reader saw them", "counter", _END, "ends",
     lambda end: end["missed"] if end["mode"] else None, sum),
    ("channel_frames_held", "Frames that a reader holds", "gauge", _END, "ends",
     lambda end: end["held"] if end["mode"] else None, sum),
)  # fmt: skip


def samples(found: Look) -> Iterator[tuple[str, str, str, tuple[str, ...], dict[tuple[str, ...], float]]]:
    """Yield all metrics. Each is a tuple of name, help text, kind, label names, and a dict from label values to the
    value.
    """
    sources = {
        "rows": list(_objects(found.rows)),
        "channels": list(_channels(found.channels)),
        "ends": list(_ends(found.channels)),
    }
    for name, text, kind, labels, source, read, join in _FAMILIES:
        values: dict[tuple[str, ...], list[float]] = {}
        for key, thing in sources[source]:
            value = read(thing)
            if value is not None:
                values.setdefault(key, []).append(value)
        yield f"xpushare_{name}", text, kind, labels, {key: join(each) for key, each in values.items()}


class _Collector:
    """Gives prometheus_client the current values each time that Prometheus asks for them."""

    def __init__(self, families: Any) -> None:
        self._families = families
        self._lock = threading.Lock()
        self._found: Look | None = None

    def _look(self) -> Look:
        """Look at what is shared now. Requests that come at the same time share one look."""
        asked = time.monotonic()
        with self._lock:
            found = self._found
            if found is None or found.at < asked:
                found = self._found = look()
            return found

    def collect(self) -> Iterator[Any]:
        for name, text, kind, labels, values in samples(self._look()):
            counts = kind == "counter"
            make = self._families.CounterMetricFamily if counts else self._families.GaugeMetricFamily
            family = make(name, text, labels=labels)
            for key, value in values.items():
                family.add_metric(key, value)
            yield family


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Returns 0, or 1 if prometheus-client is not installed. Raises `OSError` that names the address
    if the address cannot be used.
    """
    try:
        import prometheus_client as prometheus
        from prometheus_client import core
    except ImportError:
        print(
            "xpushare metrics needs prometheus-client: pip install '.[metrics]' in a checkout of xpushare",
            file=sys.stderr,
        )
        return 1
    registry: Any = prometheus.CollectorRegistry(auto_describe=False)
    registry.register(_Collector(core))
    if arguments.listen is None:
        print(prometheus.generate_latest(registry).decode(), end="")
        return 0
    host, port = arguments.listen
    try:
        server = Server(host, port, prometheus.MetricsHandler.factory(registry))
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from error
    print(f"serving http://{host}:{server.port}/metrics", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    finally:
        server.server_close()
    return 0
