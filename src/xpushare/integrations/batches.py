"""Batches of torch's DataLoader in a channel: `xpushare.integrations.torch.Batches`."""

from __future__ import annotations

import importlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, final
from weakref import finalize

from xpushare import adapters
from xpushare.arrays.containers import flatten, unflatten
from xpushare.channels.channel import Channel, lock_pages, slots_of
from xpushare.channels.ends import fill_tree
from xpushare.channels.frames import laid_out
from xpushare.channels.groups import new_name
from xpushare.common.errors import InvalidArgumentError, XpuShareError
from xpushare.common.numbers import integer
from xpushare.core.device import Device

if TYPE_CHECKING:
    from xpushare.channels.ends import Frame, Loan
    from xpushare.core.device import DeviceLike

__all__ = ["Batches"]

numpy: Any = importlib.import_module("numpy")
torch: Any = importlib.import_module("torch")
_collate: Any = importlib.import_module("torch.utils.data._utils.collate")
_ALIGNMENT: Final = 64
_LENT: Final = 4  # batches whose slots the caller may hold, or a device may still copy, when the next one is received
_MOST_WORKERS: Final = 63  # a channel has at most 64 writers, and this process is one of them
_ADVICE: Final = (
    "A sample consists of tensors, NumPy arrays, numbers and strings, in dicts, lists and tuples, and all samples of a "
    "batch have the same structure and shapes. Have the dataset return such samples: pad what differs in length, and "
    "make a dict of a dataclass (dataclasses.asdict)"
)


@final
class _Slot:
    """The bytes of a loaned frame, into which tensors are stacked one after the other."""

    def __init__(self, loan: Loan) -> None:
        self._bytes = torch.from_dlpack(loan.array)
        self._end = 0

    @property
    def address(self) -> int:
        address: int = self._bytes.data_ptr()
        return address

    def stack(self, batch: Any, *, collate_fn_map: Any = None) -> Any:  # noqa: ARG002
        """Stack tensors in the slot, as torch's own collate function does in new memory. Tensors of several dtypes, and
        tensors for which there is no room, are stacked in new memory. `laid_out` copies that, or reports what is too
        large.
        """
        for each in batch:
            if not isinstance(each, torch.Tensor):
                raise InvalidArgumentError(
                    f"the samples of a batch have a Tensor and a {type(each).__name__} at the same place. {_ADVICE}"
                )
        kinds = {(type(each), each.layout, each.dtype, each.is_cpu, each.requires_grad) for each in batch}
        first = batch[0]
        if kinds != {(torch.Tensor, torch.strided, first.dtype, True, False)} or first.is_nested or first.is_quantized:
            return _stacked(batch)
        nbytes = len(batch) * first.nbytes
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        if not nbytes or start + nbytes > self._bytes.nbytes:
            return torch.stack(batch)
        self._end = start + nbytes
        out = self._bytes[start : self._end].view(first.dtype).view(len(batch), *first.shape)
        return torch.stack(batch, 0, out=out)


def _stacked(batch: Any) -> Any:
    """Stack tensors of several dtypes or classes in new memory. Raises `InvalidArgumentError` if a batch of them cannot
    be carried.
    """
    for each in batch:
        way = (
            "torch.nested.to_padded_tensor(x, 0)" if each.is_nested
            else "x.to_dense()" if each.layout is not torch.strided
            else "x.dequantize()" if each.is_quantized
            else None
        )  # fmt: skip
        if way is not None:
            kind = "nested" if each.is_nested else "quantized" if each.is_quantized else str(each.layout)
            raise InvalidArgumentError(
                f"a sample has a tensor that is {kind}, and batches carry dense ones: have the dataset return {way}, "
                "or the parts of the tensor"
            )
        if not each.is_cpu:
            raise InvalidArgumentError(
                f"a sample has a tensor on {each.device}, and batches are collated on the host: have the dataset "
                "return x.cpu()"
            )
        if each.requires_grad:
            raise InvalidArgumentError(
                "a sample has a tensor that requires gradients, which batches do not carry: have the dataset return "
                "x.detach()"
            )
    made = torch.stack(tuple(batch))
    if type(made) is not torch.Tensor:
        raise InvalidArgumentError(
            f"a sample has a {type(made).__name__}, and batches carry plain tensors: have the dataset return "
            "x.as_subclass(torch.Tensor), or the tensors that it consists of"
        )
    return made


def _of_numpy(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Collate NumPy arrays as torch does, but refuse subclasses, such as masked arrays, which torch would take for
    plain arrays.
    """
    for each in batch:
        if type(each) is not numpy.ndarray and type(each) is not numpy.memmap:
            raise InvalidArgumentError(
                f"the samples of a batch have an ndarray and a {type(each).__name__} at the same place. {_ADVICE}"
                if not isinstance(each, numpy.ndarray)
                else f"a sample has a {type(each).__name__}, and batches carry plain arrays: have the dataset return "
                "np.asarray(x)"
            )
    return _collate.collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)


def _plain(x: Any) -> Any:
    """Return a collated batch with a dict for each mapping, and a list for each sequence other than a tuple."""
    if isinstance(x, str | bytes):
        return x
    if isinstance(x, Mapping):
        return {key: _plain(each) for key, each in x.items()}
    if isinstance(x, tuple):
        found = [_plain(each) for each in x]
        return tuple(found) if type(x) is tuple else type(x)(*found)  # a named tuple
    return [_plain(each) for each in x] if isinstance(x, Sequence) else x


@final
class _CollateFn:
    """The `collate_fn` that a DataLoader's workers call. A worker gets this object by fork or by pickle, and opens the
    channel at the first call.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._name = name
        self._options = options
        self._channel: Channel | None = None
        self._pid = 0

    def __getstate__(self) -> tuple[str, dict[str, Any]]:
        return self._name, self._options

    def __setstate__(self, state: tuple[str, dict[str, Any]]) -> None:
        self.__init__(*state)

    def __call__(self, samples: Any) -> int:
        if self._channel is None or self._pid != os.getpid():
            self._channel = self._joined()
            self._pid = os.getpid()
        with self._channel.loan() as loan:
            slot = _Slot(loan)
            functions = {**_collate.default_collate_fn_map, torch.Tensor: slot.stack, numpy.ndarray: _of_numpy}
            try:
                batch = _plain(_collate.collate(samples, collate_fn_map=functions))
            except (XpuShareError, MemoryError):
                raise
            except Exception as error:
                raise InvalidArgumentError(
                    f"no batch can be made of these samples ({type(error).__name__}: {error}). {_ADVICE}"
                ) from error
            fill_tree(loan, laid_out(batch, self._options["nbytes"], slot.address))
        return loan.seq

    def _joined(self) -> Channel:
        try:
            return Channel.create(self._name, **self._options)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"these Batches were made for {self._options['writers'] - 1} workers, and more of them are alive. Pass "
                f"a larger workers=, or make Batches for each DataLoader with persistent_workers ({error})"
            ) from error

    def close(self) -> None:
        if self._channel is not None and self._pid == os.getpid():
            self._channel.close()


@final
class Batches:
    """Carry a DataLoader's batches from its workers to this process in shared memory, without a copy on the way.

    The workers collate their samples straight into slots of a channel. With `device`, those slots are page-locked for
    that GPU in this process, so a copy to the GPU needs no intermediate copy. Leave the DataLoader's `pin_memory` off.

        with Batches(64 << 20, workers=4, device="cuda:0") as batches:
            loader = DataLoader(dataset, 256, num_workers=4, collate_fn=batches.collate_fn)
            for batch in batches.of(loader, "cuda:0"):
                train(batch)

    A batch has the structure that torch's `default_collate` makes. Mappings arrive as dicts, and a named tuple as a new
    class with the same fields. Tensors are dense and on the host. If a batch cannot be made of the samples or does not
    fit, the worker raises `InvalidArgumentError`.

    Args:
        nbytes: The maximum size of all tensors of one batch together, in bytes.
        workers: The DataLoader's `num_workers`. There are `workers * (prefetch + 1) + 6` slots.
        prefetch: The DataLoader's `prefetch_factor`.
        device: The GPU for which the slots are page-locked. None means that they are not page-locked.
        label: The name of the channel's members in `ls`.

    Raises:
        InvalidArgumentError: A number is out of range, or `device` names no device.
        OutOfMemoryError: There is not enough memory for the slots.
    """

    def __init__(
        self,
        nbytes: int,
        *,
        workers: int,
        prefetch: int = 2,
        device: DeviceLike | None = None,
        label: str | None = None,
    ) -> None:
        self._workers = max(_number("workers", workers, 0, _MOST_WORKERS), 1)
        self._outstanding = self._workers * _number("prefetch", prefetch, 1, 1 << 10)
        options: dict[str, Any] = {
            "nbytes": _number("nbytes", nbytes, 1, 1 << 46), "slots": self._outstanding + self._workers + 6,
            "writers": self._workers + 1, "label": label,
        }  # fmt: skip
        name = "batches-" + new_name()[1:]
        self._writer = Channel.create(name, **options)  # so that the stream continues when an epoch's workers end
        # None after `close`. Batches in slots refer to it, so the slots stay in use until the last of them is dropped.
        self._reader: Channel | None = Channel.open(name, label=label)
        if device is not None:
            lock_pages(self._reader, device)
        # Torch's device that may still copy a batch when the caller drops it, or None.
        self._reads = None if device is None else _torch_device(Device(device))
        for place in slots_of(self._reader):
            place.allocation.lent = True  # see `description.is_lent`
        self._collate_fn = _CollateFn(name, options)
        self._ahead: dict[int, Frame] = {}  # frames of batches that come later in the DataLoader's order
        self._lent: set[Frame] = set()  # frames whose slots the caller's tensors lie in
        self._copying: deque[tuple[Any, Frame]] = deque()  # frames that a device may still copy
        self._iterating = False

    @property
    def collate_fn(self) -> Any:
        """The DataLoader's `collate_fn`. It writes a batch into the channel and returns the batch's frame number."""
        return self._collate_fn

    def of(self, loader: Any, to: Any = None) -> Iterator[Any]:
        """Iterate over one epoch of a DataLoader that was made with this object's `collate_fn`.

        The batches belong to the caller. Without `to`, or with a CPU, the tensors of a batch lie in a slot of the
        channel. The slot is used again after the last tensor, view or array over it is gone. If the caller holds four
        batches, further ones are copied to memory of their own, so keeping batches never blocks the workers.

        To share a batch with another process, share a copy: `xs.share(batch, copy=True)`.

        Args:
            loader: The DataLoader. It has a `batch_size` or a `batch_sampler`.
            to: A torch device. Batches are copied to a GPU on its current stream. This process does not wait for the
                copies.

        Returns:
            An iterator of batches.

        Raises:
            InvalidArgumentError: The DataLoader has another `collate_fn`, makes no batches (`batch_size=None`), or has
                more workers or a larger `prefetch_factor` than this object was made for. Or an earlier epoch has not
                ended, this object is closed, or `to` is not a device to which batches can be copied.
        """
        if (
            getattr(loader, "collate_fn", None) is not self._collate_fn
            or loader.num_workers > self._workers
            or loader.num_workers * (loader.prefetch_factor or 0) > self._outstanding
        ):
            raise InvalidArgumentError(
                "the DataLoader has to be made with collate_fn=batches.collate_fn, and Batches with its num_workers as "
                "workers= and its prefetch_factor as prefetch="
            )
        if loader.batch_sampler is None:
            raise InvalidArgumentError(
                "a DataLoader with batch_size=None makes no batches. Pass it a batch_size or a batch_sampler. If the "
                "dataset returns whole batches, pass batch_size=1 and take element 0 of each tensor"
            )
        self._expect_no_epoch()
        return self._epoch(loader, _device(to))

    def _expect_no_epoch(self) -> None:
        if self._reader is None:
            raise InvalidArgumentError("these Batches are closed: iterate inside the `with` block")
        if self._iterating:
            raise InvalidArgumentError(
                "an epoch of these batches is under way, or was left early with persistent_workers: end it, or make "
                "new Batches"
            )

    def _epoch(self, loader: Any, device: Any) -> Iterator[Any]:
        self._expect_no_epoch()  # another iterator may have begun since `of` was called
        self._iterating = True
        numbers: Any = None
        ended = False
        try:
            numbers = iter(loader)
            for number in numbers:
                yield self._batch(number, device)
            ended = True
        finally:
            self._iterating = not ended and loader.persistent_workers
            with ExitStack() as left:
                if not ended:
                    left.callback(self._abandon, numbers)
                left.callback(self._settle)

    def _batch(self, number: int, device: Any) -> Any:
        """Return the batch in the frame with this number, on the device. None means the host."""
        while self._copying and (len(self._copying) + len(self._lent) >= _LENT or self._copying[0][0].query()):
            self._release_oldest()
        frame = self._frame(number)
        if device is not None:
            try:
                return _mapped(frame.array, lambda each: _tensor(each, frame).to(device, non_blocking=True))
            finally:  # also after a failure, since copies of other tensors may be queued
                self._copying.append((_copied(device), frame))
        if len(self._lent) >= _LENT:
            batch = _mapped(frame.array, lambda each: _tensor(each, frame).clone())
            frame.close()
            return batch
        self._lent.add(frame)
        keep = _Keep(self._reader)
        finalize(keep, _dropped, frame, self._lent, self._copying, self._reads).atexit = False
        return _mapped(frame.array, lambda each: _tensor(each, keep))

    def _frame(self, number: int) -> Frame:
        if self._reader is None:
            raise InvalidArgumentError("these Batches were closed while an epoch was under way")
        while number not in self._ahead:
            found = self._reader.receive()
            self._ahead[found.seq] = found
        return self._ahead.pop(number)

    def _release_oldest(self) -> None:
        """Wait for the oldest copies to the device, and release their slot."""
        copied, frame = self._copying.popleft()
        try:
            copied.synchronize()
        finally:
            frame.close()

    def _settle(self) -> None:
        """Wait for the copies to the device, and release their slots."""
        try:
            while self._copying:  # which other threads may extend, by dropping a batch
                self._release_oldest()
        finally:
            while self._copying:
                self._copying.popleft()[1].close()

    def _abandon(self, numbers: Any) -> None:
        """End an epoch's workers, and drop the batches that were not read."""
        end = getattr(numbers, "_shutdown_workers", None)
        if end is not None:
            end()
        for frame in self._ahead.values():
            frame.close()
        self._ahead.clear()
        while self._reader is not None and self._reader.ready():
            self._reader.receive(0).close()

    def close(self) -> None:
        """Close the channel in this process. Idempotent.

        Batches that the caller holds stay valid. While one of them lies in a slot, all slots stay allocated.
        """
        self._settle()
        self._ahead.clear()
        self._collate_fn.close()
        self._reader = None
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("Batches cannot be copied or pickled: a DataLoader takes batches.collate_fn, which can")


@final
class _Keep:
    """Held by all tensors of a batch in a slot, and by everything that shares their memory. Keeps the channel open."""

    __slots__ = ("__weakref__", "_reader")

    def __init__(self, reader: Channel | None) -> None:
        self._reader = reader


def _dropped(frame: Frame, lent: set[Frame], copying: deque[tuple[Any, Frame]], reads: Any) -> None:
    """Release the slot of a batch that the caller has dropped. If its device `reads` slots, the slot is released after
    the copies that are queued on torch's current stream.
    """
    lent.discard(frame)
    if reads is not None:
        with suppress(RuntimeError):  # of a forked child, which copies nothing, or of a device that has failed
            copying.append((_copied(reads), frame))


@final
class _Bytes:
    """The bytes of an array in a slot, in the form that NumPy takes. NumPy arrays over them hold this object."""

    def __init__(self, values: Any, keep: object) -> None:
        self._keep = keep
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (values.nbytes,), "data": (values.ctypes.data, False)
        }  # fmt: skip


def _tensor(array: Any, keep: object) -> Any:
    """Return a tensor over an array in a slot. The tensor, and everything that shares its memory, holds `keep`.

    torch's `from_dlpack` is not used, since it rejects memory that is page-locked for CUDA.
    """
    values: Any = numpy.asarray(array)
    raw = torch.from_numpy(numpy.asarray(_Bytes(values, keep)))
    return raw.view(getattr(torch, str(values.dtype))).view(values.shape)


def _number(name: str, given: Any, least: int, most: int) -> int:
    return integer(name, given, lambda value: least <= value <= most, f"is an integer from {least} to {most}")


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return the tree with `change` applied to each of its arrays."""
    arrays, described = flatten(tree)
    return unflatten(described, [change(each) for each in arrays])


def _device(to: Any) -> Any:
    """Return the torch device to copy batches to, or None for the host, where nothing has to be copied."""
    if to is None:
        return None
    try:
        device = torch.device(to)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"to={to!r:.100} is not a torch device: {error}") from None
    if device.type == "cpu":
        return None
    if not _has_events(device.type) or (device.index or 0) >= getattr(torch, device.type).device_count():
        raise InvalidArgumentError(f"torch has no device {str(device)!r} here to which batches could be copied")
    return device


def _torch_device(device: Device) -> Any:
    """Return torch's name for a device of ours, or None if torch cannot copy to it."""
    record = adapters.record(device.backend)
    kind = None if record is None else record.torch_type
    return None if kind is None or kind == "cpu" or not _has_events(kind) else torch.device(kind, device.ordinal)


def _has_events(kind: str) -> bool:
    library: Any = getattr(torch, kind, None)
    return hasattr(library, "Event") and bool(library.is_available())


def _copied(device: Any) -> Any:
    """Return an event that completes after the copies queued so far on torch's current stream of a device."""
    library = getattr(torch, device.type)
    made = library.Event()
    made.record(library.current_stream(device))
    return made
