"""`attach`: the array, or the tree of arrays, behind a handle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from xpushare import adapters
from xpushare._device import Device, dlpack_of
from xpushare.arrays.consumers import consumer_of, exchange_of, torch_stream
from xpushare.arrays.containers import only_argument, pruned, unflatten
from xpushare.arrays.copies import is_unordered
from xpushare.arrays.following import follower, is_range
from xpushare.common.errors import HandleExpiredError, InvalidArgumentError
from xpushare.core import memory
from xpushare.core.ordering import work_on
from xpushare.objects.array_handle import ArrayHandle, expect_open
from xpushare.objects.lifecycle import use
from xpushare.objects.message import ONE_ARRAY, content_of, read_message
from xpushare.objects.opened import Orders, Part, arrays_of, give_back, open_message
from xpushare.objects.queue import Queue
from xpushare.sharing.handle import COUNTED, PICKLED, fields_of, newest

if TYPE_CHECKING:
    from xpushare._device import DeviceLike
    from xpushare.arrays.consumers import Consumer
    from xpushare.arrays.containers import Only
    from xpushare.core.memory import Range
    from xpushare.core.queue import Work
    from xpushare.objects.array import SharedArray
    from xpushare.objects.message import Content
    from xpushare.sharing.handle import HandleLike

__all__ = ["attach", "attach_message"]


def attach(
    h: HandleLike,
    *,
    device: DeviceLike | None = None,
    stream: Any = None,
    like: Any = None,
    types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None,
    own: bool = False,
) -> Any:
    """The array behind a handle, mapped here: the same bytes, writable unless it was shared read-only. The handle of a
    tree gives the tree.

    `device=None` opens on the device that the handle names. Readers are ordered after the producer's stream: `stream`
    (a `Queue`, another library's stream, a raw one) waits for it on the device from now on. So do the stream of a
    consumer's `__dlpack__(stream=…)`, queues that get the array as an operand, and the host before it makes a view.
    `stream=-1` opts out of all that.

    Arrays are `SharedArray`, or what `like` makes of one: `torch`, `cupy`, `jax`, `numpy` (the module or its name), or
    a function. In a tree, named tuples are of the classes in `types` with their names, or of new classes.

    `only` opens a part of a tree: the arrays at or below these paths, or those whose path the function accepts. A path
    joins keys and indices by dots: `"layers.0"` stands for everything below `tree["layers"][0]`, and for the keys that
    begin with `layers.0.` in a flat dict. The other arrays are absent from dicts, and None in lists and tuples. The
    memory in which only other arrays lie is not opened, except the first of the handle, which counts `opens`.
    `InvalidArgumentError` if there is no array at a path.

    With `own=True`, this process becomes an owner of the memory: it holds descriptors of its own, so that it can
    `share`, `publish` and pickle what it attached even after the process that shared it has ended. The memory lives as
    long as any owner or reader does. An array that was shared read-only stays read-only. `FeatureNotSupportedError` for
    memory that ends with the process that made it (`cudaMalloc`, say).

    The result owns the mapping; views and capsules keep it. What raises leaves nothing open. Raises
    `InvalidHandleError` for anything but an array handle of this user and boot that fits the memory it names,
    `HandleExpiredError` after `close` or the exporter's end, and what `ipc.memory.open` raises.
    """
    consumer = None if like is None else consumer_of(like)
    chosen = None if only is None else only_argument(only)
    found = read_message(h) if type(h) is bytes else ArrayHandle(h)
    while True:
        try:
            return attach_message(found, device, stream, consumer, types, chosen, bool(own))
        except HandleExpiredError:
            again = newest(found)
            if again is None:
                raise
            found = ArrayHandle(again)


def attach_message(
    message: ArrayHandle,
    device: DeviceLike | None = None,
    stream: Any = None,
    consumer: Consumer | None = None,
    types: Iterable[Any] = (),
    only: Only | None = None,
    own: bool = False,
) -> Any:
    """What a message names, its arrays mapped here. What fails leaves nothing open, and takes no open away."""
    if message.closed:
        expect_open(message)
    content = content_of(message)
    tree = content.tree
    kinds: Iterable[Any] = ()
    if tree is not ONE_ARRAY:
        if is_range(tree):
            if consumer is not None or only is not None:
                raise InvalidArgumentError("this is the handle of a range that grows: like= and only= are for arrays")
            return follower(message, tree, device)
        try:
            kinds = list(types)
        except TypeError:
            raise InvalidArgumentError(f"types is classes of named tuples, not {types!r}") from None
        unflatten(tree, range(message.count), kinds)  # refused before anything is opened, and the exporter is met
    part: Part | None = None
    if only is not None:
        tree, part = _part_of(message, tree, only)
    ordered = stream is None or not is_unordered(stream)
    work = None if stream is None or not ordered else _work_of(stream, message, device)
    opened: list[Range] = []
    made: list[SharedArray | None] = []
    try:
        orders = open_message(message, device, ordered, work, opened, part, own)
        found = None if consumer is None or part is not None else _tensors(message, content, opened, orders, consumer)
        if found is None:
            made = arrays_of(message, opened, content, orders, part)
            found = made if consumer is None else _consumed(made, consumer)
        return found[0] if tree is ONE_ARRAY else unflatten(tree, found, kinds)
    except BaseException:
        give_back(message, opened, part)
        for array in made:
            if array is not None:
                array.close()
        raise


def _consumed(arrays: list[SharedArray | None], consumer: Consumer) -> list[Any]:
    return [None if each is None else consumer(each) for each in arrays]


def _part_of(message: ArrayHandle, tree: Any, only: Only) -> tuple[Any, Part]:
    """Return the tree that `only` leaves, and of which arrays and memory it is."""
    if tree is ONE_ARRAY:
        raise InvalidArgumentError("only= chooses arrays of a tree, and this is the handle of one array")
    pruned_tree, wanted = pruned(tree, only)
    numbers = {each[0] for at, each in enumerate(message.elements()) if at in wanted}
    if not numbers or fields_of(message.memory[0]).flags & (COUNTED | PICKLED):
        numbers.add(0)  # which counts the opens; else its device may be one that this process does not see
    return pruned_tree, Part(wanted, sorted(numbers))


def _tensors(
    message: ArrayHandle, content: Content, opened: list[Range], orders: Orders, consumer: Consumer
) -> list[Any] | None:
    """What the consumer makes of the arrays, by its library's exchange API. Its current streams wait for the
    producer's. None where it has to be asked array by array.
    """
    exchange = exchange_of(consumer)
    if exchange is None or content.on_dlpack is None:
        return None
    if any(each.read_only for each in opened):
        return None  # the consumer is warned
    on = [dlpack_of(each.device, each.allocation.kind) for each in opened]
    if not _wait({where: each.device for where, each in zip(on, opened, strict=True)}, orders):
        return None
    # last: the traceback of an error would hold them
    places = [(each.hold()[0], each.address, where) for each, where in zip(opened, on, strict=True)]
    return message.tensors(exchange, places, content.on_dlpack)


_started: set[tuple[int, int]] = set()  # DLPack's devices that torch has started here
os.register_at_fork(after_in_child=_started.clear)


def _wait(devices: dict[tuple[int, int], Device], orders: Orders) -> bool:
    """Have torch's current streams, and the host for its memory, wait for the content. `devices`: by DLPack's. False
    where torch does not know one.
    """
    if not orders and _started.issuperset(devices):
        return True
    streams: dict[int, Work | None] = {}  # by the id of the device; None: the host reads
    for on, device in devices.items():
        kind = adapters.dlpack_owner(on[0])[0].torch_type
        if kind is None:
            return False
        work = None if adapters.on_host(on[0]) else work_on(device, torch_stream(kind, on[1]))
        _started.add(on)
        if work is None or streams.get(id(device), work) is not None:
            streams[id(device)] = work
    for order in dict.fromkeys(orders.values()):
        if not order.settled():
            work = streams[id(order.device)]
            if work is None:
                order.before_host()
            else:
                order.before(work)
    return True


def _work_of(stream: Any, message: ArrayHandle, device: DeviceLike | None) -> Work:
    """The stream that the caller names, which is of one of the devices that the memory is going to be opened on."""
    if isinstance(stream, Queue):
        return use(stream)
    refusal: InvalidArgumentError | None = None
    handles = message.memory if device is None else message.memory[:1]
    for chosen in dict.fromkeys(memory.opener_for(each, device, None)[1] for each in handles):
        try:
            work = work_on(chosen, stream)
        except InvalidArgumentError as error:
            refusal = error
            continue
        assert work is not None  # a stream was named
        return work
    assert refusal is not None
    try:
        raise refusal
    finally:
        del refusal  # its traceback has this frame
