"""Ray integration: a transport for Ray Direct Transport (RDT), so that actors on one node share arrays instead of
copying them.

It needs Ray 2.60 or newer. Call `register()` before the actors are created. Then write
`@ray.method(tensor_transport="XPUSHARE")` or `ray.put(array, _tensor_transport="XPUSHARE")`.
"""

# Ray hands a transport its own kinds of metadata and requests, so parameters are narrower than in the base class.
# mypy: disable-error-code="override"
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from ray._private.ray_constants import (  # type: ignore[import-not-found,unused-ignore]
    RDT_FETCH_FAIL_TIMEOUT_SECONDS,
)
from ray.experimental import (  # type: ignore[import-not-found,unused-ignore]
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
    register_tensor_transport,
)
from ray.experimental.rdt.tensor_transport_manager import FetchRequest  # type: ignore[import-not-found,unused-ignore]
from ray.experimental.rdt.util import transport_manager_info  # type: ignore[import-not-found,unused-ignore]
from ray.util.scheduling_strategies import (  # type: ignore[import-not-found,unused-ignore]
    NodeAffinitySchedulingStrategy,
)

import xpushare as xs
from xpushare import adapters
from xpushare._native import End
from xpushare.arrays import description
from xpushare.common.elements import check_dtype
from xpushare.objects.array import capsule_of, host_array

__all__ = ["Transport", "register"]

ray: Any = importlib.import_module("ray")  # if Ray is missing, type checkers take `import ray` for this module
# Ray makes its manager of transfers at the first use, without a lock (as of 2.60). An actor's first transfer uses it in
# two threads, which could make one each: one would wait for arrays that the other has received. So it is made here,
# when Ray registers the transport in an actor, which is before the first transfer.
_manager: Final = ray._private.worker.global_worker.rdt_manager
_LIBRARIES: Final = ("numpy", "torch", "cupy", "jax", "jaxlib", "xpushare")
_log: Final = logging.getLogger("xpushare")


def register(name: str = "XPUSHARE", data_type: type = np.ndarray) -> None:
    """Register the transport with Ray in this process, and in the actors that this process creates from now on.

    Registering the same type and name again does nothing. This calls `ray.experimental.register_tensor_transport`.

    Args:
        name: The name of the transport, as passed to `tensor_transport=`. Each type needs a name of its own.
        data_type: The type of the arrays that the transport carries: `numpy.ndarray`, `torch.Tensor`, `cupy.ndarray`,
            `jax.Array` or `xpushare.SharedArray`. Ray takes arrays of exactly that class, not of subclasses.

    Raises:
        InvalidArgumentError: `data_type` is not one of these types, or the name is registered for another transport.

    Examples:
        >>> import ray
        >>> from xpushare.integrations.ray import register
        >>> register()  # doctest: +SKIP
        >>> reference = ray.put(np.asarray(xs.zeros(1 << 20)), _tensor_transport="XPUSHARE")  # doctest: +SKIP
        >>> ray.get(reference).size  # doctest: +SKIP
        1048576
    """
    library = _library(data_type)
    if library not in _LIBRARIES:
        raise xs.InvalidArgumentError(f"data_type is an array type of {', '.join(_LIBRARIES)}, not {data_type}")
    if library == "jax":  # jax.Array is abstract, and Ray compares classes
        data_type = importlib.import_module("jax._src.array").ArrayImpl
    name = name.upper()
    known = transport_manager_info.get(name)
    if known is None:
        transport = type(name, (Transport,), {"name": name})  # its own class, since Ray passes no arguments
        types = [record.torch_type for record in adapters.vendors() if record.torch_type is not None]
        register_tensor_transport(name, list(dict.fromkeys(types)), transport, data_type)
    elif not issubclass(known.transport_manager_class, Transport) or known.data_type is not data_type:
        raise xs.InvalidArgumentError(
            f"{name} is registered already, for {known.data_type} by {known.transport_manager_class}: take another name"
        )


def _library(data_type: type) -> str:
    return data_type.__module__.partition(".")[0]


@dataclass(kw_only=True)
class Metadata(TensorTransportMetadata):  # type: ignore[misc,unused-ignore]
    """The metadata of an object, which Ray sends to its consumers. `tensor_meta` has the shapes and dtypes in the form
    of the arrays' library.
    """

    node_id: str  # the producer's Ray node
    library: str
    backend: str
    handles: tuple[bytes, ...]


@dataclass
class Fetch(FetchRequest):  # type: ignore[misc,unused-ignore]
    """A fetch in progress. Either `tensors` has the arrays already, or `elements` refers to an object in Ray's object
    store.
    """

    obj_id: str
    tensors: list[Any]
    metadata: Metadata
    target_buffers: list[Any] | None
    elements: Any


class Transport(TensorTransportManager):  # type: ignore[misc,unused-ignore]
    """Implements Ray's transport interface. `register` registers this class with Ray, which makes one object per
    process.

    The producer shares each array (`xpushare.share`) and holds the exports until the object goes out of scope in Ray. A
    consumer on the producer's node attaches the arrays. If a consumer is on another node, or cannot see the arrays'
    GPU, a Ray task on the producer's node reads the arrays and returns them through Ray's object store. The logger
    `xpushare` reports this at level INFO.
    """

    name = "XPUSHARE"

    def __init__(self) -> None:
        self._exports: dict[str, tuple[Metadata, list[xs.ArrayHandle]]] = {}
        self._fetching: weakref.WeakValueDictionary[str, Fetch] = weakref.WeakValueDictionary()

    def tensor_transport_backend(self) -> str:
        return self.name

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:  # noqa: ARG002
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: list[Any]) -> Metadata:
        """Share an object's arrays. Consumers see their content after the work that is queued on the library's current
        stream.

        Memory that cannot be shared in place (allocated by NumPy or torch on the host) is copied once. Raises the
        errors of `share`, and `InvalidArgumentError` for arrays on devices of several kinds.
        """
        if obj_id in self._exports:  # Ray asks again if an answer was lost
            return self._exports[obj_id][0]
        handles: list[xs.ArrayHandle] = []
        with End(lambda: deque(map(xs.ArrayHandle.close, handles), 0)):
            handles.extend(map(_share, rdt_object))
            backends = {handle.handle.backend for handle in handles}
            if len(backends) > 1:
                raise xs.InvalidArgumentError(
                    f"the arrays of one object are on devices of one kind, not of {', '.join(sorted(backends))}"
                )
            backend = next(iter(backends), adapters.HOST)
            record = adapters.record(backend)
            if record is None or record.torch_type is None:
                raise xs.InvalidArgumentError(f"Ray has no type of device for {backend}")
        metadata = Metadata(
            tensor_meta=[(array.shape, _dtype_of(array)) for array in rdt_object],
            tensor_device=record.torch_type,
            node_id=ray.get_runtime_context().get_node_id(),
            library=_library(type(rdt_object[0])) if rdt_object else "",
            backend=backend,
            handles=tuple(map(bytes, handles)),
        )
        self._exports[obj_id] = metadata, handles
        return metadata

    def get_communicator_metadata(
        self,
        src_actor: Any,  # noqa: ARG002
        dst_actor: Any,  # noqa: ARG002
        backend: str | None = None,  # noqa: ARG002
    ) -> Any:
        return CommunicatorMetadata()

    def fetch_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: Any,  # noqa: ARG002
        target_buffers: list[Any] | None = None,
    ) -> Fetch:
        """Attach the arrays. If that is impossible, start a task on the producer's node that reads the arrays. Returns
        without waiting for the task.
        """
        metadata = tensor_transport_metadata
        fetch = Fetch(obj_id, [], metadata, target_buffers, None)
        if metadata.node_id == ray.get_runtime_context().get_node_id() and _visible(metadata):
            fetch.tensors = [_view(metadata.library, xs.attach(handle)) for handle in metadata.handles]
            return fetch
        _log.info("object %s of node %s comes through Ray's object store", obj_id, metadata.node_id)
        there = NodeAffinitySchedulingStrategy(metadata.node_id, soft=False)
        fetch.elements = _read_there.options(scheduling_strategy=there).remote(metadata.handles)
        self._fetching[obj_id] = fetch
        return fetch

    def wait_fetch_complete(self, fetch_request: Fetch, timeout: float = -1) -> list[Any]:
        """Return the arrays of a fetch. Raises `ray.exceptions.GetTimeoutError` after `timeout` seconds, and the errors
        of reading the arrays.
        """
        fetch, metadata = fetch_request, fetch_request.metadata
        if fetch.elements is not None:
            elements = ray.get(fetch.elements, timeout=None if timeout < 0 else timeout)
            fetch.tensors = [_view(metadata.library, _placed(each, metadata.backend)) for each in elements]
        if not fetch.target_buffers:
            return fetch.tensors
        for target, tensor in zip(fetch.target_buffers, fetch.tensors, strict=True):
            target[...] = tensor
        return fetch.target_buffers

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: Metadata,
        communicator_metadata: Any,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Return views of the producer's memory, which stays mapped as long as they live. Return copies if this process
        cannot open the memory.

        If `target_buffers` is given, these buffers are filled and returned instead. Raises `HandleExpiredError` if the
        producer has ended. Waits no longer than Ray does (RAY_rdt_fetch_fail_timeout_milliseconds).
        """
        fetch = self.fetch_multiple_tensors(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers)
        return self.wait_fetch_complete(fetch, RDT_FETCH_FAIL_TIMEOUT_SECONDS)

    def send_multiple_tensors(
        self, tensors: list[Any], tensor_transport_metadata: Metadata, communicator_metadata: Any
    ) -> None:
        raise NotImplementedError("a one-sided transport sends nothing: consumers fetch")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Metadata, tensors: list[Any]) -> None:  # noqa: ARG002
        """Withdraw an object's exports. Attached arrays stay attached, and the memory is freed once its last user has
        released it.
        """
        if obj_id in self._exports:
            for handle in self._exports.pop(obj_id)[1]:
                handle.close()

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:  # noqa: ARG002
        """Cancel the Ray task that reads the object's arrays. Arrays that are attached directly involve no task."""
        fetch = self._fetching.get(obj_id)
        if fetch is not None:
            ray.cancel(fetch.elements, force=True)


def _dtype_of(array: Any) -> Any:
    return array._dtype if isinstance(array, xs.SharedArray) else array.dtype


def _share(array: Any) -> xs.ArrayHandle:
    """Share the array in place if this process can export its memory. Otherwise share a copy on the same device."""
    with contextlib.suppress(xs.FeatureNotSupportedError, xs.InvalidArgumentError, xs.HandleExpiredError):
        handle = xs.share(array)
        if handle.handles[0].exporter.pid == os.getpid():
            return handle  # otherwise it is another process's, and may end with it
    found = description.describe(description.to_copy(array))
    check_dtype(found.dtype)
    handle = xs.share(array, copy=True)
    if found.backend is None:
        _log.info("copied %d bytes of a private %s", handle.copied_nbytes, type(array).__name__)
    return handle


def _visible(metadata: Metadata) -> bool:
    """Return whether this process can use the arrays' devices. Ray gives each actor its own GPUs."""
    wanted = {xs.ArrayHandle(handle).handle.device_uuid for handle in metadata.handles}
    return wanted <= {device.uuid for device in xs.devices(f"{metadata.backend}:*")}


def _view(library: str, array: xs.SharedArray) -> Any:
    """Return the array as an array of the given library, without a copy."""
    if library == "xpushare":
        return array
    if library == "numpy":
        return np.asarray(array)
    if library == "jaxlib":
        return importlib.import_module("jax.dlpack").from_dlpack(_ForJax(array))
    return importlib.import_module(library).from_dlpack(array)


class _ForJax:
    """Wraps an array so that JAX can import it. JAX marks the arrays that it exports as read-only, but refuses to
    import read-only arrays, since it does not know the flag. Hiding the flag is safe, because JAX never writes to an
    array.
    """

    def __init__(self, array: xs.SharedArray) -> None:
        self._array = array

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return capsule_of(self._array, stream, False, immutable=True)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def _read(handles: tuple[bytes, ...]) -> list[Any]:
    """Return copies of the arrays' elements on the host, for Ray to send. Runs on the producer's node."""
    return [_read_one(handle) for handle in handles]


def _read_one(handle: bytes) -> Any:
    where = xs.ArrayHandle(handle).handle
    if where.backend == adapters.HOST:
        return host_array(xs.attach(handle))
    with xs.Queue(where.device_uuid) as queue:
        array = xs.attach(handle, stream=queue)
        memory = array.memory  # exactly the bytes that the elements span
        host = xs.malloc_host(max(memory.nbytes, 1), array.device)
        queue.copy(host, memory)
        queue.synchronize()
    return np.ndarray(array.shape, array._dtype, memoryview(host), array.ptr - memory.ptr, array.strides)


def _placed(elements: Any, backend: str) -> xs.SharedArray:
    """Copy these elements into a new array on the backend's first device."""
    host = xs.empty(elements.shape, elements.dtype)
    host_array(host)[...] = elements
    if backend == adapters.HOST:
        return host
    array = xs.empty(elements.shape, elements.dtype, device=f"{backend}:0")
    with xs.Queue(array.device) as queue:
        queue.copy(array, host)
        queue.synchronize()
    return array


_read_there = ray.remote(num_cpus=0, max_retries=0)(_read)
