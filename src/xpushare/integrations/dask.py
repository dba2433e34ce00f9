"""Dask integration. The workers of one machine send each other handles of a few hundred bytes instead of the arrays
themselves.

The serialisation family "xpushare" sends only the handle. Dask's family "dask" tries it first if the receiver has
announced that it can open handles. This module is a preload (`distributed.worker.preload`), and has a plugin for
workers that are already running. A *lease* keeps a handle's export alive while a peer may still open it.
docs/integrations/dask.md describes leases.
"""

# The types of Dask are unknown where it is not installed.
# mypy: disable-error-code="import-not-found"
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import copyreg
import functools
import importlib
import logging
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dask.config as dask_config
import dask.sizeof as dask_sizeof
import numpy as np
from dask.utils import parse_bytes, parse_timedelta
from distributed import Client, Worker, WorkerPlugin
from distributed.comm.addressing import get_address_host
from tornado.ioloop import PeriodicCallback

import xpushare as xs
from xpushare import adapters
from xpushare.arrays.copies import host_view
from xpushare.arrays.description import describe, to_copy
from xpushare.objects.array import host_array
from xpushare.sharing import identity, node
from xpushare.sharing.handle import fields_of, keyed_hash

__all__ = ["XpushareSerialization", "dask_setup", "leases", "register"]

FAMILY: Final = "xpushare"  # the family's name, and the key in a process's announcement when it connects
_LIBRARIES: Final = {"torch": "Tensor", "cupy": "ndarray"}
_SWEEP_SECONDS: Final = 0.1
_FETCH_SECONDS: Final = 0.5  # how long a receiver may take from its open until it has the memory
_SPARE_SECONDS: Final = 10.0
_EXPIRED_MOST: Final = 3  # failures in a row before this process asks for values

_log: Final = logging.getLogger("xpushare")
_sizeof: Final[Any] = dask_sizeof.sizeof
_protocol: Final[Any] = importlib.import_module("distributed.protocol.serialize")  # has no types


@dataclass
class _Settings:
    threshold: int  # bytes
    lease: float  # seconds
    copies: int  # bytes


_settings = _Settings(0, 0, 0)


# --- leases: an export lives until its receiver has fetched it


class _Lease:
    """A handle that was sent to one receiver, and the data that decides when its export ends."""

    def __init__(self, handle: xs.ArrayHandle, memory: xs.Memory | None, receiver: _Process, end: float) -> None:
        self.handle = handle
        self.memory = memory  # the memory that the elements were copied into
        self.receiver = receiver
        self.end = end
        self.seen: float | None = None  # when the lease was first seen to be opened

    def over(self, now: float) -> str | None:
        """Return why the lease has ended, or None if it has not.

        - "returned": the receiver opened the handle and closed it again.
        - "kept": the receiver opened the handle and now owns the memory.
        - "lost": the receiver died before it opened the handle.
        - "expired": the handle was not opened in time.
        """
        table = node.current().table()
        entry = fields_of(self.handle.handle).entry
        try:
            table.find(self.handle.handle)
        except xs.HandleExpiredError:
            return "returned"
        if table.domain.opens_left(entry):
            if not self.receiver.alive():
                return "lost"
            return "expired" if now >= self.end else None
        if not table.domain.holders(entry):
            return "returned"
        if self.seen is None:
            self.seen = now
        long_enough = now - self.seen >= _FETCH_SECONDS
        return "kept" if long_enough and _outlives_exporter(self.handle.handle.device_uuid) else None


@functools.cache
def _outlives_exporter(device: str) -> bool:
    return xs.Device(device).has(xs.Aspect.outlives_exporter)


@functools.cache
def _on_host(device: str) -> bool:
    return xs.Device(device).backend == adapters.HOST


class Leases:
    """The handles that this process has sent, each of which can be opened once.

    A lease keeps an export alive. It ends when its receiver owns the memory or has closed it again, when the receiver
    has died without opening the handle, or when the time of the lease has passed. Memory of copies is reused for later
    copies once no process has it open, since new shared pages cost more than the copy itself.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._live: list[_Lease] = []
        self._spare: list[tuple[float, xs.Memory]] = []  # when it became spare
        self._counts: Counter[str] = Counter()

    def grant(self, handle: xs.ArrayHandle, memory: xs.Memory | None, receiver: _Process) -> None:
        """Keep the export of a handle alive until its lease ends. `memory` is the copy behind the handle, or None."""
        lease = _Lease(handle, memory, receiver, self._clock() + _settings.lease)
        with self._lock:
            self._live.append(lease)
            self._counts["granted"] += 1

    def count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def sweep(self) -> None:
        """End the leases that have expired or been returned."""
        now = self._clock()
        with self._lock:
            found = [(lease, lease.over(now)) for lease in self._live]
            self._live = [lease for lease, why in found if why is None]
            ended = [(lease, why) for lease, why in found if why is not None]
            for lease, why in ended:
                self._counts[why] += 1
                if why == "returned" and lease.memory is not None:
                    self._spare.append((now, lease.memory))
            before, self._spare = self._spare, [each for each in self._spare if now - each[0] < _SPARE_SECONDS]
        del found, before  # outside the lock, since unmapping takes a while
        for lease, why in ended:
            lease.handle.close()
            if why in ("expired", "lost"):
                _log.warning(
                    "a handle of %d bytes was never opened (%s); releasing its memory", lease.handle.nbytes, why
                )

    def memory(self, nbytes: int) -> xs.Memory:
        """Return host memory of at least `nbytes` bytes that no other process has open. Raises `OutOfMemoryError` if
        the memory of all copies would exceed the configured limit.
        """
        self.sweep()
        dropped: list[tuple[float, xs.Memory]] = []
        with self._lock:
            fitting = [each for each in self._spare if nbytes <= each[1].nbytes <= 2 * nbytes]
            if fitting:
                found = min(fitting, key=lambda each: each[1].nbytes)
                self._spare.remove(found)
                return found[1]
            room = _settings.copies - nbytes
            room -= sum(lease.memory.nbytes for lease in self._live if lease.memory is not None)
            if room < 0:
                raise xs.OutOfMemoryError(f"copies on their way fill the {_settings.copies} bytes that they may have")
            while sum(memory.nbytes for _since, memory in self._spare) > room:
                dropped.append(self._spare.pop(0))
        del dropped
        return xs.malloc_device(nbytes, "native_cpu:0")

    def statistics(self) -> dict[str, int]:
        """Return the numbers that `leases` returns. The docstring of `leases` describes them."""
        self.sweep()
        with self._lock:
            waiting = [lease for lease in self._live if lease.seen is None]
            opened = [lease for lease in self._live if lease.seen is not None]
            names = ("granted", "returned", "kept", "expired", "lost", "refused", "attached", "failed")
            return {name: self._counts[name] for name in names} | {
                "waiting": len(waiting),
                "waiting_nbytes": sum(lease.handle.nbytes for lease in waiting),
                "opened": len(opened),
                "opened_nbytes": sum(lease.handle.nbytes for lease in opened),
                "spare_nbytes": sum(memory.nbytes for _since, memory in self._spare),
            }


_leases = Leases()


def leases() -> dict[str, int]:
    """Return statistics of the handles that this process has sent and received. `client.run(leases)` returns those of
    all workers.

    Returns:
        A dict of numbers.

        - `granted`: handles that were sent
        - `waiting`: handles that have not been opened yet
        - `opened`: handles whose memory the receiver holds
        - `returned`: handles that were opened and closed again
        - `kept`: handles that were opened, and whose memory the receiver now owns
        - `expired`: handles that were not opened in time
        - `lost`: handles that were not opened, because the receiver died
        - `refused`: arrays that could not be exported and were sent by value
        - `attached`, `failed`: received handles that this process opened, or could not open
        - `waiting_nbytes`, `opened_nbytes`: the memory behind the `waiting` and the `opened` handles, in bytes
        - `spare_nbytes`: shared memory that is kept for the next copy, in bytes

    Examples:
        >>> from xpushare.integrations.dask import leases
        >>> leases()["waiting"]
        0
    """
    return _leases.statistics()


# --- the receiver and its place


@dataclass(frozen=True)
class _Process:
    """The process that receives a handle. `pid` is None if this process cannot see the other process."""

    pid: int | None
    started: int

    def alive(self) -> bool:
        return self.pid is None or _started(self.pid) == self.started


def _started(pid: int) -> int | None:
    """Return the start time of a living process, in clock ticks since the boot. It distinguishes the process from a
    later process with the same pid.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _whereabouts() -> dict[str, Any]:
    """Return the facts that decide whether two processes can open each other's handles. These are one hash over the
    key and the boot id, and the ids of the namespaces.
    """
    return {
        "key": keyed_hash(b"xpushare.integrations.dask" + identity.boot_id()),
        "net": identity.namespace("net"),
        "pid_namespace": identity.namespace("pid"),
        "pid": os.getpid(),
    }


def _receiver(context: dict[str, Any] | None) -> _Process | None:
    """Return the process that requested the data, if it can open handles of this process. Return None if the elements
    must be sent by value.
    """
    asked: dict[str, Any] | None = (context or {}).get("recipient", {}).get(FAMILY)
    if context is None or asked is None:
        return None
    here = _whereabouts()
    neighbour = asked["pid_namespace"] == here["pid_namespace"] != 0
    if asked["key"] != here["key"] or not (neighbour or asked["net"] == here["net"] != 0):
        return None
    # Dask decides which processes are on one node. A process that opens its own handle holds no lease.
    if asked["host"] not in (None, get_address_host(context["sender"]["address"])):
        return None
    if neighbour and asked["pid"] == here["pid"]:
        return None
    return _Process(asked["pid"] if neighbour else None, asked["started"])


# --- the family


def _kind(x: Any) -> str | None:
    """Return the name of the array's library, or None if the object cannot be sent as a handle."""
    if type(x) is np.ndarray:
        repeated = any(not step and length > 1 for step, length in zip(x.strides, x.shape, strict=True))
        return None if repeated or x.dtype.hasobject else "numpy"  # Dask sends repeated elements once
    if type(x) is xs.SharedArray:
        return "xpushare"
    for library, name in _LIBRARIES.items():
        module = sys.modules.get(library)
        if module is not None and type(x) is getattr(module, name, None):
            plain = library != "torch" or not (x.requires_grad or x.grad is not None or x.is_neg() or x.is_conj())
            return library if plain else None
    return None


def _dumps(x: Any, context: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:
    """Serialise `x` as a handle. Raises `NotImplementedError` if that is impossible, so that Dask tries the next
    family.
    """
    kind = _kind(x)
    if kind is None or x.nbytes < max(_settings.threshold, 1):
        raise NotImplementedError
    receiver = _receiver(context)
    if receiver is None:
        raise NotImplementedError
    try:
        handle, memory = _export(x, kind)
    except (xs.XpuShareError, BufferError, TypeError) as error:
        _leases.count("refused")
        _log.info("a %s goes by value: %s", type(x).__name__, error)
        raise NotImplementedError from error
    _leases.grant(handle, memory, receiver)
    return {"handle": bytes(handle), "kind": kind, "writeable": kind != "numpy" or x.flags.writeable}, []


def _export(x: Any, kind: str) -> tuple[xs.ArrayHandle, xs.Memory | None]:
    """Export the array in place if its memory can be shared. Such an export is read-only, unless the library has no
    read-only arrays. Otherwise export a copy, which then belongs to the receiver. Returns the handle, and the memory of
    the copy if it is on the host.
    """
    on_host = adapters.on_host(x.__dlpack_device__()[0]) if kind != "numpy" else True
    if not on_host:
        return xs.share(x, copy=True, opens=1), None
    try:
        return xs.share(x, read_only=kind not in _LIBRARIES, opens=1), None
    except (xs.FeatureNotSupportedError, xs.InvalidArgumentError):
        pass
    values = host_view(x := to_copy(x), describe(x)) if kind == "torch" else np.asarray(x)  # NumPy gets no bfloat16
    memory = _leases.memory(values.nbytes)
    flipped = values.flags.f_contiguous and not values.flags.c_contiguous
    target = host_array(memory.as_array(values.shape[::-1] if flipped else values.shape, values.dtype))
    if flipped:
        target = target.T
    np.copyto(target, values)
    return xs.share(target, opens=1), memory


def _loads(header: dict[str, Any], _frames: list[Any]) -> Any:
    """Attach the array of a handle. Any failure raises `OSError`, so that Dask requests the value from another worker,
    or again from the same one.
    """
    try:
        handle = xs.ArrayHandle(header["handle"])
        # The handle can be opened once, so other requests get a descriptor of this process.
        array = xs.attach(handle, own=_on_host(handle.handle.device_uuid))
    except xs.XpuShareError as error:
        _asking.failed(error)
        raise OSError(f"cannot open the handle of an array: {error}") from error
    _asking.succeeded()
    kind = header["kind"]
    if kind == "xpushare":
        return array
    if kind == "numpy":
        values = np.asarray(array)
        if not header["writeable"]:
            values.flags.writeable = False
        return values
    return importlib.import_module(kind).from_dlpack(array)


def _dask_dumps(x: Any, context: dict[str, Any] | None = None) -> Any:
    """Serialise `x` as a handle or, if that is impossible, as Dask's own family "dask" does. This replaces that
    family's function, since requests for data do not name the family "xpushare".
    """
    try:
        return _dumps(x, context)
    except NotImplementedError:
        pass
    try:
        return _protocol.dask_dumps(x, context)
    except TypeError as error:
        if _kind(x) != "torch":
            raise
        raise NotImplementedError from error  # of elements that NumPy lacks, so it goes as a pickle


def _dask_loads(header: dict[str, Any], frames: list[Any]) -> Any:
    return _loads(header, frames) if "handle" in header else _protocol.dask_loads(header, frames)


# --- SharedArrays by value: data that is spilled to disk, or goes to another node, must not be a handle

_pickling = threading.local()


def _values(array: xs.SharedArray) -> Any:
    if array.device.backend != adapters.HOST:
        raise TypeError(
            f"a SharedArray on {array.device} cannot go by value: let tasks return torch or CuPy arrays over it "
            "(torch.from_dlpack, cupy.from_dlpack)"
        )
    return np.asarray(array)


def _shared(values: Any) -> xs.SharedArray:
    array = xs.empty(values.shape, values.dtype)
    np.copyto(np.asarray(array), values)
    return array


def _pickle_dumps(x: Any, context: dict[str, Any] | None = None) -> Any:
    """Pickle `x` as Dask does, but send each `SharedArray` in it by value."""
    before = getattr(_pickling, "by_value", False)
    _pickling.by_value = True
    try:
        return _protocol.pickle_dumps(x, context)
    finally:
        _pickling.by_value = before


def _reduce(array: xs.SharedArray) -> Any:
    if getattr(_pickling, "by_value", False):
        return _shared, (_values(array),)
    return array.__reduce__()


# --- asking for handles


class _Asking:
    """Announces to this process's peers, on its connections to them, that this process can open their handles."""

    def __init__(self) -> None:
        self._pools: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # pool -> its loop
        self._expired = 0

    def begin(self, server: Worker | Client) -> None:
        """Announce on each new connection of `server` that this process can open handles."""
        pool: Any = server.rpc
        about = _whereabouts() | {
            "started": _started(os.getpid()),
            "host": get_address_host(server.address) if isinstance(server, Worker) else None,
        }
        self._say(pool, server.loop, {FAMILY: about})
        self._pools[pool] = server.loop

    def end(self, *pools: Any) -> None:
        """Stop the announcements. From now on, peers send this process values instead of handles."""
        for pool in pools:
            loop = self._pools.pop(pool, None)
            if loop is not None:
                self._say(pool, loop, {})

    def _say(self, pool: Any, loop: Any, about: dict[str, Any]) -> None:
        said = dict(pool.connection_args.get("handshake_overrides") or {})
        said.pop(FAMILY, None)
        pool.connection_args = {**pool.connection_args, "handshake_overrides": said | about}
        loop.add_callback(pool.collect)  # pooled connections have received the old announcement

    def succeeded(self) -> None:
        self._expired = 0
        _leases.count("attached")

    def failed(self, error: xs.XpuShareError) -> None:
        """Count a handle that could not be opened. After several expired handles in a row, or any other error, end the
        announcements, since the failure would recur.
        """
        _leases.count("failed")
        self._expired += 1
        if isinstance(error, xs.HandleExpiredError) and self._expired < _EXPIRED_MOST:
            _log.info("a handle had expired when it came; asking for another: %s", error)
        elif self._pools:
            _log.warning("this process cannot open the handles it gets, and asks for values from now on: %s", error)
            self.end(*self._pools)


_asking = _Asking()


# --- the functions for users


def register(
    server: Any = None,
    *,
    threshold: int | str | None = None,
    lease: float | str | None = None,
    copies: int | str | None = None,
) -> None:
    """Register the serialisation family "xpushare" with Dask in this process.

    If `register` is called several times, the settings of the last call apply. A peer that has not registered still
    sends and receives arrays by value.

    Args:
        server: A `Worker` or `Client` of this process. It then receives handles instead of values from its peers.
        threshold: Arrays below this size are sent by value (bytes, or "1 MiB"). None means `xpushare.threshold` in
            Dask's configuration, or else 1 MiB.
        lease: How long a handle waits to be opened (seconds, or "300 s"). None means `xpushare.lease`, or else 300 s.
        copies: The limit on shared memory for copies of private arrays, including memory that is kept for the next
            copies. Beyond this limit, arrays are sent by value. None means `xpushare.copies`, or else 1 GiB.

    Raises:
        ValueError: `threshold` or `copies` is not a number of bytes.
        KeyError: `lease` has a unit that Dask does not know.

    Examples:
        >>> from distributed import Client
        >>> from xpushare.integrations.dask import XpushareSerialization, register
        >>> client = Client("tcp://127.0.0.1:8786")  # doctest: +SKIP
        >>> client.register_plugin(XpushareSerialization())  # calls it in the workers  # doctest: +SKIP
        >>> register(client)  # for arrays that this client gathers from them  # doctest: +SKIP
        >>> client.gather(client.submit(np.ones, 1 << 20), direct=True).size  # doctest: +SKIP
        1048576
    """
    _settings.threshold = int(parse_bytes(_setting("threshold", threshold, "1 MiB")))
    _settings.lease = float(parse_timedelta(_setting("lease", lease, "300 s")))
    _settings.copies = int(parse_bytes(_setting("copies", copies, "1 GiB")))
    _protocol.register_serialization_family(FAMILY, _dumps, _loads)
    _protocol.register_serialization_family("dask", _dask_dumps, _dask_loads)
    _protocol.register_serialization_family("pickle", _pickle_dumps, _protocol.pickle_loads)
    _sizeof.register(xs.SharedArray, lambda array: array.nbytes)
    copyreg.pickle(xs.SharedArray, _reduce)
    if isinstance(server, Worker) and FAMILY not in server.periodic_callbacks:
        sweeper = server.periodic_callbacks[FAMILY] = PeriodicCallback(_leases.sweep, 1000 * _SWEEP_SECONDS)
        sweeper.start()
    if isinstance(server, Worker | Client):
        _asking.begin(server)


def _setting(name: str, given: Any, default: str) -> Any:
    return dask_config.get(f"xpushare.{name}", default) if given is None else given


def dask_setup(server: object) -> None:
    """Register Dask's serialization family `xpushare`. Dask calls this for `--preload xpushare.integrations.dask` and
    for `distributed.worker.preload`.
    """
    register(server)


class XpushareSerialization(WorkerPlugin):  # type: ignore[misc,unused-ignore]
    """Calls `register` in every worker, including later ones: `client.register_plugin(XpushareSerialization())`."""

    name = "xpushare"

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def setup(self, worker: Worker) -> None:
        register(worker, **self._settings)

    def teardown(self, worker: Worker) -> None:
        _asking.end(worker.rpc)
