"""`attach` opens the array, or the tree of arrays, behind a handle."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Union, overload

import xpushare.objects.array  # noqa: F401  # pyright: ignore[reportUnusedImport]  # native code makes its arrays
from xpushare import adapters
from xpushare.common.errors import HandleExpiredError, InvalidArgumentError
from xpushare.core import memory
from xpushare.core.declare import public
from xpushare.core.device import dlpack_of
from xpushare.objects.array_handle import ArrayHandle, expect_open
from xpushare.objects.lifecycle import use
from xpushare.objects.message import (
    ONE_ARRAY,
    Part,
    arrays_of,
    content_of,
    give_back,
    is_range,
    is_unordered,
    open_message,
    read_message,
)
from xpushare.sharing.handle import COUNTED, PICKLED, Handle, fields_of, newest

if TYPE_CHECKING:
    import jax  # type: ignore[import-not-found, unused-ignore]  # unless it is installed
    import torch  # type: ignore[import-not-found, unused-ignore]
    from numpy.typing import NDArray
    from typing_extensions import TypeVar

    from xpushare.adapters.array_types import Tree
    from xpushare.arrays.consumers import Consumer, Library
    from xpushare.arrays.containers import Only
    from xpushare.core.device import DeviceLike
    from xpushare.core.memory import Range
    from xpushare.core.queue import Work
    from xpushare.objects.array import SharedArray
    from xpushare.objects.message import Content, Orders
    from xpushare.objects.physical_memory import VirtualRange

    # Anything. Jedi takes the bound for the type, and picks the first overload, since it resolves no generic alias.
    T = TypeVar("T", bound=Union[SharedArray, Any], default=Any)  # noqa: UP007
    ArrayHandleLike = Union[ArrayHandle[T], Handle]  # noqa: UP007
    V = TypeVar("V")
    K = TypeVar("K", bound=str | int)

    # Handles of which nothing is known: Any alone is assignable to a class without objects. (With Never, mypy finds no
    # common type of `attach` and another function.)
    class Nothing: ...

    Unknown = Union[ArrayHandle[Nothing], ArrayHandle[dict[Any, Nothing]], ArrayHandle[list[Nothing]]]  # noqa: UP007
    Attached = TypeVar("Attached", bound=SharedArray | VirtualRange | Tree, default=SharedArray)

__all__ = ["attach", "attach_message"]


# With `like`, `Unknown` comes first, because pyright takes the first overload that a handle may match, and an
# `ArrayHandle[Any]` may match all. A `Handle` may be of a tree. The last overload is for other trees and for CuPy.
@overload
def attach(
    h: ArrayHandleLike[T], *, device: DeviceLike | None = None, stream: Any = None,
    like: None = None, types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> T: ...  # fmt: skip
@overload
def attach(
    h: bytes | bytearray | memoryview | str, *, device: DeviceLike | None = None, stream: Any = None,
    like: None = None, types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> Attached: ...  # type: ignore[type-var]  # what the caller declares, else an array  # fmt: skip
@overload
def attach(
    h: Unknown | Handle, *, device: DeviceLike | None = None, stream: Any = None,
    like: Literal["numpy", "torch", "cupy", "jax"] | Library[Any] | Callable[[SharedArray], Any],
    types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> Any: ...  # fmt: skip
@overload
def attach(
    h: ArrayHandle[dict[K, SharedArray]], *, device: DeviceLike | None = None, stream: Any = None,
    like: Library[V] | Callable[[SharedArray], V], types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> dict[K, V]: ...  # fmt: skip
@overload
def attach(
    h: ArrayHandle[list[SharedArray]], *, device: DeviceLike | None = None, stream: Any = None,
    like: Library[V] | Callable[[SharedArray], V], types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> list[V]: ...  # fmt: skip
@overload
def attach(
    h: ArrayHandle | Handle | bytes | bytearray | memoryview | str, *, device: DeviceLike | None = None,
    stream: Any = None, like: Literal["numpy"], types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> NDArray[Any]: ...  # fmt: skip
@overload
def attach(  # pyright: ignore[reportUnknownParameterType]  # unless the library is installed
    h: ArrayHandle | Handle | bytes | bytearray | memoryview | str, *, device: DeviceLike | None = None,
    stream: Any = None, like: Literal["torch"], types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> torch.Tensor: ...  # fmt: skip
@overload
def attach(  # pyright: ignore[reportUnknownParameterType]  # unless the library is installed
    h: ArrayHandle | Handle | bytes | bytearray | memoryview | str, *, device: DeviceLike | None = None,
    stream: Any = None, like: Literal["jax"], types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> jax.Array: ...  # fmt: skip
@overload
def attach(
    h: ArrayHandle | Handle | bytes | bytearray | memoryview | str, *, device: DeviceLike | None = None,
    stream: Any = None, like: Library[V] | Callable[[SharedArray], V], types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> V: ...  # fmt: skip
@overload
def attach(
    h: ArrayHandle[Any] | Handle | bytes | bytearray | memoryview | str, *, device: DeviceLike | None = None,
    stream: Any = None,
    like: Literal["numpy", "torch", "cupy", "jax"] | Library[Any] | Callable[[SharedArray], Any],
    types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None, own: bool = False,
) -> Any: ...  # fmt: skip
def attach(
    h: ArrayHandle[Any] | Handle | bytes | bytearray | memoryview | str,
    *,
    device: DeviceLike | None = None,
    stream: Any = None,
    like: Library[Any] | Callable[[SharedArray], Any] | str | None = None,
    types: Iterable[type[tuple[Any, ...]]] = (),
    only: str | Iterable[str] | Callable[[str], bool] | None = None,
    own: bool = False,
) -> SharedArray | Any:
    """Open an array that `share` exported, in any process of this user.

    The elements are the same bytes, not a copy. They are writable unless the array was shared
    read-only. The result keeps the memory mapped, and so do NumPy arrays and tensors made from it.

    If the handle is that of a tree, the result is the tree. If it is that of a growable `VirtualRange`, the result is a
    range that follows it.

    Type checkers infer the type of the result from the handle that `share` returned. If `like` is a module or a
    function, they also infer the types of single arrays and of dicts and lists of arrays. They cannot infer a type if
    `like` is a name such as "numpy", or if the handle comes from bytes, text or `lookup`. Declare the type in these
    cases: `tree: dict[str, xs.SharedArray] = xs.attach(raw)`.

    Args:
        h: The handle that `share` or `lookup` returned, or its bytes or text. If a handle from `lookup` has expired
            because its name was published again, the newest version is opened.
        device: Where to open the memory. None means the device that the handle names.
        stream: A `Queue`, another library's stream object or a raw stream pointer. The stream waits on the device for
            the producer's work. By default the first user of the array waits: the consumer's stream, the queue, or the
            host. -1 waits for nothing.
        like: `numpy`, `torch`, `cupy` or `jax` (the module or its name), or a function of a
            `SharedArray`. The result then consists of that library's arrays, or of what the
            function returns.
        types: Classes of the named tuples in a tree. Others come back as new classes.
        only: Opens a part of a tree: paths such as `"layers.0"`, or a function that returns
            whether a path is wanted. A path joins keys and indices by dots, and selects everything
            below it. Other arrays are absent from dicts, and None in lists and tuples.
        own: Makes this process an owner of the memory. It can then share, publish and pickle the
            array even after the process that made it has ended.

    Returns:
        A `SharedArray`, or the result of `like`.

    Raises:
        InvalidArgumentError: `h` is not the handle of an array, or is closed, or `only` matches
            no array.
        InvalidHandleError: The bytes were altered, or come from another user or from before the last reboot.
        HandleExpiredError: The exporter has closed the handle, or has exited.
        RouteError: This process cannot reach the exporter's memory in any way. The error's `reasons` say how to enable
            each way.
        FeatureNotSupportedError: The device cannot open this memory, or `own=True` was given and the memory cannot
            outlive the process that made it.
        OutOfMemoryError: Memory or file descriptors ran out.

    Examples:
        >>> handle = xs.share(xs.array([1, 2, 3]))
        >>> xs.attach(handle, like="numpy")
        array([1, 2, 3])
        >>> handle.close()
    """
    consumer = chosen = None
    if like is not None:
        from xpushare.arrays.consumers import consumer_of

        consumer = consumer_of(like)
    if only is not None:
        from xpushare.arrays.containers import only_argument

        chosen = only_argument(only)
    if type(h) is bytes:
        found = read_message(h)
    else:
        found = ArrayHandle(h)
        expect_open(found)
    while True:
        try:
            return attach_message(found, device, stream, consumer, types, chosen, own)
        except HandleExpiredError:
            again = newest(found)
            if again is None:
                raise
            found = ArrayHandle(again)


def attach_message(
    message: ArrayHandle[Any],
    device: DeviceLike | None = None,
    stream: Any = None,
    consumer: Consumer | None = None,
    types: Iterable[Any] = (),
    only: Only | None = None,
    own: bool = False,
) -> Any:
    """Open the arrays of a message, as `attach` does. If this fails, everything is closed again, and the attempt does
    not count towards `opens`.
    """
    content = content_of(message)
    tree = content.tree
    kinds: Iterable[Any] = ()
    if tree is not ONE_ARRAY:
        from xpushare.arrays.containers import unflatten

        if is_range(tree):
            from xpushare.arrays.following import follower

            if consumer is not None or only is not None:
                raise InvalidArgumentError("this is the handle of a range that grows: like= and only= are for arrays")
            return follower(message, tree, device)
        try:
            kinds = list(types)
        except TypeError:
            raise InvalidArgumentError(f"types is classes of named tuples, not {types!r}") from None
        # Raise before anything is opened, and before this process attaches to the exporter.
        unflatten(tree, range(message._count), kinds)
    part: Part | None = None
    if only is not None:
        tree, part = _part_of(message, tree, only)
    ordered, work = True, None
    if stream is not None:
        ordered = not is_unordered(stream)
        work = _work_of(stream, message, device) if ordered else None
    opened: list[Range] = []
    made: list[SharedArray | None] = []
    try:
        orders = open_message(message, device, ordered, work, opened, part, own)
        found = None if consumer is None or part is not None else _tensors(message, content, opened, orders, consumer)
        if found is None:
            made = arrays_of(message, opened, content, orders, part)
            found = made if consumer is None else _consumed(made, consumer)
        if tree is ONE_ARRAY:
            return found[0]
        from xpushare.arrays.containers import unflatten

        return unflatten(tree, found, kinds)
    except BaseException:
        give_back(message, opened, part)
        for array in made:
            if array is not None:
                array.close()
        raise


def _consumed(arrays: list[SharedArray | None], consumer: Consumer) -> list[Any]:
    return [None if each is None else consumer(each) for each in arrays]


def _part_of(message: ArrayHandle, tree: Any, only: Only) -> tuple[Any, Part]:
    """Return the part of the tree that `only` selects, and the arrays and memory that this part needs."""
    if tree is ONE_ARRAY:
        raise InvalidArgumentError("only= chooses arrays of a tree, and this is the handle of one array")
    from xpushare.arrays.containers import pruned

    pruned_tree, wanted = pruned(tree, only)
    numbers = {each[0] for at, each in enumerate(message._elements) if at in wanted}
    if not numbers or fields_of(message._memory[0]).flags & (COUNTED | PICKLED):
        numbers.add(0)  # it counts the opens. Otherwise its device may be invisible here
    return pruned_tree, Part(wanted, sorted(numbers))


def _tensors(
    message: ArrayHandle, content: Content, opened: list[Range], orders: Orders, consumer: Consumer
) -> list[Any] | None:
    """Convert the opened memory to torch tensors in one native call. Return None if `consumer` is not
    `torch.from_dlpack`, or if the fast conversion is not possible. The caller then calls `consumer` for each array.
    torch's current streams wait for the producers' streams.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or consumer is not torch.from_dlpack or content.on_dlpack is None:
        return None
    exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if exchange is None:
        return None
    on: list[tuple[int, int]] = []
    for each in opened:
        if each.read_only:
            return None  # the consumer has to emit a warning
        on.append(dlpack_of(each.device, each.allocation.kind))
    each = None  # type: ignore[assignment]  # the traceback of an error would hold it
    if (orders or not _started.issuperset(on)) and not _wait(on, opened, orders):
        return None
    places: list[tuple[object, int, tuple[int, int]]] = []  # made last, as above
    for each, where in zip(opened, on, strict=True):
        places.append((each, each.allocation.address + each.offset, where))
    return message._tensors(exchange, places, content.on_dlpack)


_started: set[tuple[int, int]] = set()  # DLPack's devices that torch has started here
os.register_at_fork(after_in_child=_started.clear)


def _wait(places: list[tuple[int, int]], opened: list[Range], orders: Orders) -> bool:
    """Wait until the content is complete. For device memory, torch's current streams wait. For host memory, this call
    blocks. `places` are the DLPack devices of the ranges in `opened`. Return False if torch does not support one of
    these devices.
    """
    from xpushare.arrays.consumers import torch_stream
    from xpushare.core.ordering import work_on

    devices = {on: each.device for on, each in zip(places, opened, strict=True)}
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
    """Return the stream that the caller passed to `attach`. Raises `InvalidArgumentError` unless the stream belongs to
    one of the devices on which the memory will be opened.
    """
    from xpushare.core.ordering import work_on
    from xpushare.objects.queue import Queue

    if isinstance(stream, Queue):
        return use(stream)
    refusal: InvalidArgumentError | None = None
    handles = message._memory if device is None else message._memory[:1]
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


public(__name__, "attach")
