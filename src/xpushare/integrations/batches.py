"""Batches of torch's DataLoader in a channel: `xpushare.integrations.torch.Batches`."""

from __future__ import annotations

import importlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self, final

from xpushare.arrays.containers import flatten, unflatten
from xpushare.channels.channel import Channel, lock_pages
from xpushare.channels.crews import new_name
from xpushare.channels.ends import fill_tree
from xpushare.channels.frames import laid_out
from xpushare.common.errors import InvalidArgumentError

if TYPE_CHECKING:
    from xpushare._device import DeviceLike
    from xpushare.channels.ends import Frame, Loan

__all__ = ["Batches"]

numpy: Any = importlib.import_module("numpy")
torch: Any = importlib.import_module("torch")
_collate: Any = importlib.import_module("torch.utils.data._utils.collate")
_ALIGNMENT: Final = 64
_IN_FLIGHT: Final = 2  # batches that the device may still be copying


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

    def stack(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        """Stack tensors in the slot, as torch's own collate function does in new memory."""
        first = batch[0]
        shape = (len(batch), *first.shape)
        nbytes = len(batch) * first.nbytes
        start = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        if first.layout is not torch.strided or not nbytes or start + nbytes > self._bytes.nbytes:
            return _collate.collate_tensor_fn(
                batch, collate_fn_map=collate_fn_map
            )  # `laid_out` reports it if it is too large
        self._end = start + nbytes
        out = self._bytes[start : self._end].view(first.dtype).view(shape)
        return torch.stack(batch, 0, out=out)


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
            self._channel = Channel.create(self._name, **self._options)
            self._pid = os.getpid()
        with self._channel.loan() as loan:
            slot = _Slot(loan)
            functions = {**_collate.default_collate_fn_map, torch.Tensor: slot.stack}
            batch = _collate.collate(samples, collate_fn_map=functions)
            fill_tree(loan, laid_out(batch, self._options["nbytes"], slot.address))
        return loan.seq

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

    A batch has the structure that torch's `default_collate` makes, except that a named tuple arrives as a new class
    with the same fields. If a batch does not fit, the worker raises `InvalidArgumentError`.

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
        options: dict[str, Any] = {
            "nbytes": nbytes, "slots": max(workers, 1) * (prefetch + 1) + 6, "writers": max(workers, 1) + 1,
            "label": label,
        }  # fmt: skip
        name = "batches-" + new_name()[1:]
        self._outstanding = max(workers, 1) * prefetch
        self._writer = Channel.create(name, **options)  # so that the stream continues when an epoch's workers end
        self._reader = Channel.open(name, label=label)
        if device is not None:
            lock_pages(self._reader, device)
        self._collate_fn = _CollateFn(name, options)
        self._ahead: dict[int, Frame] = {}  # frames of batches that come later in the DataLoader's order
        self._iterating = False

    @property
    def collate_fn(self) -> Any:
        """The DataLoader's `collate_fn`. It writes a batch into the channel and returns the batch's frame number."""
        return self._collate_fn

    def of(self, loader: Any, to: Any = None) -> Iterator[Any]:
        """Iterate over one epoch of a DataLoader that was made with this object's `collate_fn`.

        Args:
            loader: The DataLoader.
            to: A torch device. Batches are copied to the device on its current stream, and the copies belong to the
                caller. This process does not wait for the copies. Without `to`, a batch's tensors lie in a slot of the
                channel. They are valid until the next batch is requested.

        Returns:
            An iterator of batches.

        Raises:
            InvalidArgumentError: The DataLoader has another `collate_fn`, or more workers or a larger `prefetch_factor`
                than this object was made for, or an earlier epoch has not ended.
        """
        if (
            loader.collate_fn is not self._collate_fn
            or loader.num_workers * (loader.prefetch_factor or 0) > self._outstanding
        ):
            raise InvalidArgumentError(
                "the DataLoader has to be made with collate_fn=batches.collate_fn, and Batches with its num_workers as "
                "workers= and its prefetch_factor as prefetch="
            )
        if self._iterating:
            raise InvalidArgumentError(
                "an epoch of these batches is under way, or was left early with persistent_workers: end it, or make "
                "new Batches"
            )
        return self._epoch(loader, None if to is None else torch.device(to))

    def _epoch(self, loader: Any, device: Any) -> Iterator[Any]:
        self._iterating = True
        in_flight: deque[tuple[Any, Frame]] = deque()
        numbers = iter(loader)
        ended = False
        try:
            for number in numbers:
                frame = self._frame(number)
                batch = _mapped(frame.array, _tensor)
                if device is None:
                    yield batch
                    del batch
                    frame.close()
                    continue
                batch = _mapped(batch, lambda each: each.to(device, non_blocking=True))
                in_flight.append((_copied(device), frame))
                yield batch
                del batch
                while in_flight and (len(in_flight) > _IN_FLIGHT or in_flight[0][0].query()):
                    copied, frame = in_flight.popleft()
                    copied.synchronize()
                    frame.close()
            ended = True
        finally:
            for copied, frame in in_flight:
                copied.synchronize()
                frame.close()
            if not ended:
                self._abandon(numbers)
            self._iterating = not ended and loader.persistent_workers

    def _frame(self, number: int) -> Frame:
        while number not in self._ahead:
            found = self._reader.receive()
            self._ahead[found.seq] = found
        return self._ahead.pop(number)

    def _abandon(self, numbers: Any) -> None:
        """End an epoch's workers, and drop the batches that were not read."""
        end = getattr(numbers, "_shutdown_workers", None)
        if end is not None:
            end()
        for frame in self._ahead.values():
            frame.close()
        self._ahead.clear()
        while self._reader.ready():
            self._reader.receive(0).close()

    def close(self) -> None:
        """Close the channel in this process. Tensors of a batch that lie in a slot stay valid. Idempotent."""
        self._ahead.clear()
        self._collate_fn.close()
        self._reader.close()
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return the tree with `change` applied to each of its arrays."""
    arrays, described = flatten(tree)
    return unflatten(described, [change(each) for each in arrays])


def _tensor(array: Any) -> Any:
    """Return a tensor over an array in a slot. torch's `from_dlpack` is not used, since it rejects memory that is
    page-locked for CUDA.
    """
    values: Any = numpy.asarray(array)
    raw = torch.from_numpy(values.reshape(-1).view("uint8"))
    return raw.view(getattr(torch, str(values.dtype))).view(values.shape)


@final
class _AtOnce:
    """Replaces torch's event for a copy that is already complete."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


def _copied(device: Any) -> Any:
    """Return an event that completes after the copies queued so far on torch's current stream of a device."""
    if device.type == "cpu":
        return _AtOnce()
    made = getattr(torch, device.type).Event()
    made.record(getattr(torch, device.type).current_stream(device))
    return made
