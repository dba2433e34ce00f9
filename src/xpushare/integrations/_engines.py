"""Common code of the plug-ins for inference engines. It publishes weights, reports when readers have finished, and
packs weights into buckets (the frames of a channel).

Weights are pairs `(name, tensor)` of torch tensors, as these engines pass them. This module does not depend on any
engine.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Final, Self

import xpushare as xs
from xpushare import adapters
from xpushare.arrays.consumers import torch_stream

__all__ = [
    "META_NBYTES", "Buckets", "Publisher", "Reader", "device_of", "nearest", "receive_buckets", "send_buckets",
    "signal", "snapshot",
]  # fmt: skip

torch: Any = importlib.import_module("torch")  # type checkers take `import torch` for this package's module
META_NBYTES: Final = 1 << 18  # of a channel that carries buckets: names and shapes of some 2,000 tensors
# NumPy has no bfloat16 or float8 unless ml_dtypes is installed. Such tensors are published as integers of their size,
# and the dtype follows the name behind this character.
_DTYPE: Final = "\0"


def device_of(device: Any) -> xs.Device:
    """Return the `xs.Device` for a torch device."""
    place = torch.device(device)
    backends = {each.torch_type: each.backend for each in adapters.vendors()}
    if place.type not in backends:
        raise xs.InvalidArgumentError(f"xpushare has no backend for torch's devices of type {place.type!r}")
    return xs.Device(f"{backends[place.type]}:{place.index or 0}")


def signal(event: xs.Event, device: Any) -> None:
    """Signal the event once the work that is queued on torch's current stream of `device` has finished."""
    place = torch.device(device)
    if place.type == "cpu":
        event.signal()
    else:  # torch.accelerator's streams do not expose the driver's stream
        xs.Queue.from_native(torch_stream(place.type, place.index)).signal(event)


def _padded(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def _view(slab: Any, at: int, dtype: Any, shape: Iterable[int]) -> Any:
    """Return a tensor with this dtype and shape over part of a flat tensor. The part begins at byte `at`."""
    size: Any = torch.Size(shape)
    return slab[at : at + size.numel() * dtype.itemsize].view(dtype).view(size)


def snapshot(weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Copy tensors into new memory on their devices, and return the copies by name. The new memory can be shared in
    place, and the keeper and other processes can own it.

    Each device gets one allocation. If several tensors have the same name, the last of them is returned. Views of one
    tensor become separate copies.
    """
    weights = list(weights)
    copies: dict[str, Any] = {}
    for device in dict.fromkeys(tensor.device for _, tensor in weights):
        here = [(name, tensor) for name, tensor in weights if tensor.device == device]
        room = sum(_padded(tensor.nbytes) for _, tensor in here)
        slab = torch.from_dlpack(xs.empty(max(room, 1), "uint8", device=device_of(device)))
        at = 0
        for name, tensor in here:
            copies[name] = _view(slab, at, tensor.dtype, tensor.shape)
            copies[name].copy_(tensor.detach())
            at += _padded(tensor.nbytes)
    return {name: copies[name] for name, _ in weights}


def _carried(name: str, tensor: Any) -> tuple[str, Any]:
    """Return a tensor and its name in the form to publish. If NumPy lacks the tensor's dtype, the result is a view with
    an integer dtype, and the original dtype is appended to the name.
    """
    dtype = str(tensor.dtype).removeprefix("torch.")
    if not dtype.startswith(("bfloat16", "float8", "float4")):
        return name, tensor
    return name + _DTYPE + dtype, tensor.view(torch.uint8 if tensor.dtype.itemsize == 1 else torch.int16)


def _restored(name: str, tensor: Any) -> tuple[str, Any]:
    """Undo `_carried`. Tensors that were published without `_carried` stay unchanged."""
    name, _, dtype = name.partition(_DTYPE)
    return name, tensor.view(getattr(torch, dtype)) if dtype else tensor


class Publisher:
    """Publishes weights under `name`. Only one process may publish under a name at a time.

    With `keep=True`, each version is copied and handed to the keeper, which holds the two newest versions. Engines can
    start from them after this process has exited.

    Without `keep`, a version is available until the next version or `withdraw`. If all tensors are on GPUs, they are
    shared in place. Otherwise all of them are copied.
    """

    def __init__(self, name: str, *, keep: bool = False) -> None:
        self._name = name
        self._keep = keep
        self.tree: Any = None  # device, name and version of the published tree

    def publish(self, weights: Iterable[tuple[str, Any]]) -> int:
        """Publish the weights as a new version (one tree of tensors) and return the version number, which readers pass
        to `Reader.reading`. Raises `InvalidArgumentError` if two of them have the same name.
        """
        found = [(name, tensor.detach()) for name, tensor in weights]
        if twice := [name for name, count in Counter(name for name, _ in found).items() if count > 1]:
            raise xs.InvalidArgumentError(f"these weights have {twice[0]!r} more than once: give each tensor one name")
        copied = self._keep or any(tensor.device.type == "cpu" for _, tensor in found)
        tree = dict(itertools.starmap(_carried, snapshot(found).items() if copied else found))
        version = xs.publish(self._name, tree, replace=True, versions=2 if self._keep else 1, keep=self._keep)
        self.tree = str(device_of(found[0][1].device).uuid) if found else "", self._name, version
        return version

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all readers have finished with the tensors that they attached, including their device work.

        Call this after the engine has reported that its readers ran. This does not wait for readers that have not
        started yet or have died. Raises `TimeoutError` if a reader takes longer than `timeout` seconds.
        """
        for name, handle in xs.published().items():
            if name.startswith(f"{self._name}.reader-"):
                with contextlib.suppress(xs.HandleExpiredError, xs.PeerLostError):
                    assert isinstance(handle, xs.ipc.Handle)
                    with xs.ipc.event.open(handle, signals=False) as done:
                        done.wait(timeout)

    def withdraw(self) -> None:
        """Withdraw the published version, so that it cannot be opened any more. Mappings that are already open stay
        open. A version that the keeper holds stays available. Idempotent.
        """
        if self.tree is not None and not self._keep:
            xs.unpublish(self._name)
        self.tree = None


def nearest(trees: list[tuple[str, str, int]], device: Any, rank: int) -> tuple[str, str, int]:
    """Choose one of the trees of several publishers. `trees` has the device uuid, name and version of each. A tree on
    the reader's own device is preferred, otherwise the first tree is chosen.

    If several trees are on that device, the reader's rank decides.
    """
    here = [tree for tree in trees if tree[0] == str(device_of(device).uuid)]
    return here[rank % len(here)] if here else trees[0]


class Reader:
    """Loads published weights onto the torch device `device`. Each rank needs its own reader."""

    def __init__(self, name: str, device: Any) -> None:
        self.name = name
        self._device = torch.device(device)
        self._done = xs.Event(device_of(self._device), enable_ipc=True, signals=True)
        self._done_name = f"{name}.reader-{uuid.uuid4().hex}"
        xs.publish(self._done_name, self._done)

    @contextlib.contextmanager
    def reading(
        self, version: int | None = None, *, only: Callable[[str], bool] | None = None, timeout: float | None = None
    ) -> Generator[dict[str, Any], None, None]:
        """Attach a version of the weights, by default the newest, and yield its tensors by name. If `only` is given,
        attach only the tensors whose names it accepts.

        The tensors may be used only inside the `with` block, on torch's current stream. Before the block begins, this
        raises `HandleExpiredError` if the publisher has exited or the version was withdrawn. It raises `TimeoutError`
        if the version does not appear within `timeout` seconds.
        """
        tensors: dict[str, Any] = {}
        wanted = None if only is None else lambda path: only(path.partition(_DTYPE)[0])
        try:
            handle = xs.lookup(self.name, timeout=timeout, version=version)
            tensors = dict(itertools.starmap(_restored, xs.attach(handle, like=torch, only=wanted).items()))
            yield tensors
        finally:
            tensors.clear()
            signal(self._done, self._device)

    def close(self) -> None:
        """Close the reader, so that publishers no longer wait for it. Idempotent."""
        if not self._done.closed:
            xs.unpublish(self._done_name)
            self._done.close()


# --- buckets: weights through a channel of bounded size, `Channel.create(…, (nbytes,), "uint8", slots=3, …)`


class Buckets:
    """Packs tensors into frames of a channel, in order: `with Buckets(channel) as to: to.add(…)`.

    The channel needs frames of bytes (`shape=(nbytes,)`, dtype uint8) and `meta_nbytes=META_NBYTES`. On a GPU, the
    copies are queued on torch's current stream, and the host does not wait for them. A slot is reused only after every
    reader's work with it has finished. The end of the block calls `channel.finish()`, unless the block raises.
    """

    def __init__(self, channel: xs.Channel, *, timeout: float | None = None) -> None:
        self._channel = channel
        self._timeout = timeout
        self._frame = contextlib.ExitStack()
        self._loan: Any = None
        self._slab: Any = None
        self._meta: list[Any] = []
        self._at = self._room = 0

    def __enter__(self) -> Self:
        return self

    def add(self, name: str, tensor: Any) -> None:
        """Copy one tensor into the current frame, or into a new frame if it does not fit. Raises `InvalidArgumentError`
        if the tensor is larger than a frame, and `TimeoutError` if no slot becomes free in time.
        """
        room = 2 * len(name) + 24 * tensor.ndim + 96
        if self._loan is not None and (self._at + tensor.nbytes > self._slab.nbytes or self._room < room):
            self._send()
        if self._loan is None:
            self._loan = self._frame.enter_context(self._channel.loan(self._timeout))
            self._slab = torch.from_dlpack(self._loan.array)
            self._at, self._room, self._meta = 0, META_NBYTES, []
        if tensor.nbytes > self._slab.nbytes:
            raise xs.InvalidArgumentError(
                f"{name} has {tensor.nbytes} bytes, and a frame of this channel {self._slab.nbytes}: make buckets at "
                "least as large as the largest tensor"
            )
        _view(self._slab, self._at, tensor.dtype, tensor.shape).copy_(tensor.detach(), non_blocking=True)
        self._meta.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), self._at])
        self._at += _padded(tensor.nbytes)
        self._room -= room

    def _send(self) -> None:
        if self._loan is not None:
            self._loan.meta = self._meta
            self._loan = self._slab = None
            self._frame.close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self._send()
            self._channel.finish()
        else:
            self._frame.__exit__(kind, error, trace)


def send_buckets(channel: xs.Channel, weights: Iterable[tuple[str, Any]], *, timeout: float | None = None) -> None:
    """Copy all tensors into frames of the channel, and finish the stream. See `Buckets`."""
    with Buckets(channel, timeout=timeout) as to:
        for name, tensor in weights:
            to.add(name, tensor)


def receive_buckets(channel: xs.Channel, *, timeout: float | None = None) -> Iterator[list[tuple[str, Any]]]:
    """Yield the tensors of each frame, as views of its slot. They are valid until the next frame is requested.

    Ends when the sender finishes. Raises `PeerLostError` if the sender ends in any other way, and `TimeoutError` if no
    frame arrives for `timeout` seconds.
    """
    while True:
        try:
            frame = channel.receive(timeout)
        except EOFError:
            return
        with frame:
            slab = torch.from_dlpack(frame.array)
            yield [(name, _view(slab, at, getattr(torch, dtype), shape)) for name, dtype, shape, at in frame.meta]
            del slab
