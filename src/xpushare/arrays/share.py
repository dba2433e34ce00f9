"""Sharing of an array, or a tree of arrays, as one message. The message has one export for each allocation, and one
event with a signal number for each stream that is still producing content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final, overload

from xpushare.arrays.creation import empty
from xpushare.arrays.place import KINDS, OWN, Placing
from xpushare.common.elements import shown
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare.common.loading import logger
from xpushare.common.numbers import integer, seconds
from xpushare.core import memory
from xpushare.core.declare import made as tell_made
from xpushare.core.declare import public, watchers
from xpushare.core.pickles import ImplicitAll
from xpushare.objects.array import SharedArray
from xpushare.objects.array_handle import ArrayHandle
from xpushare.objects.lifecycle import DeviceObject
from xpushare.objects.message import ONE_ARRAY, text_of
from xpushare.sharing import identity, layout, node
from xpushare.sharing.handle import fields_of
from xpushare.sharing.table import label_argument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import TypeVar

    from xpushare.adapters.array_types import AnyArray, Array, Tree
    from xpushare.core.device import Device
    from xpushare.core.memory import Range
    from xpushare.core.ordering import Mark
    from xpushare.core.queue import Work
    from xpushare.core.resources import Allocation
    from xpushare.objects.physical_memory import VirtualRange
    from xpushare.sharing.handle import Handle

    K = TypeVar("K", bound=str | int)
    A = TypeVar("A", bound=Array)

__all__ = ["Placed", "opens_argument", "pickle_arrays", "placed_for_others", "share", "shared"]

_CONTAINERS: Final = dict, list, tuple
_OPENS_MAX: Final = (1 << 31) - 1


# Editors show the first. A `VirtualRange` is a buffer, too, so it comes before those.
@overload
def share(
    array: Array, *, read_only: bool = False, copy: bool = False, stream: Any = None, opens: int | None = None,
    ttl: float | None = None, label: str | None = None,
) -> ArrayHandle: ...  # fmt: skip
@overload
def share(
    array: VirtualRange, *, read_only: bool = False, copy: bool = False, stream: Any = None, opens: int | None = None,
    ttl: float | None = None, label: str | None = None,
) -> ArrayHandle[Any]: ...  # fmt: skip
@overload
def share(
    array: AnyArray, *, read_only: bool = False, copy: bool = False, stream: Any = None, opens: int | None = None,
    ttl: float | None = None, label: str | None = None,
) -> ArrayHandle: ...  # fmt: skip
@overload
def share(
    array: dict[K, A], *, read_only: bool = False, copy: bool = False, stream: Any = None, opens: int | None = None,
    ttl: float | None = None, label: str | None = None,
) -> ArrayHandle[dict[K, SharedArray]]: ...  # fmt: skip
@overload
def share(
    array: list[A], *, read_only: bool = False, copy: bool = False, stream: Any = None, opens: int | None = None,
    ttl: float | None = None, label: str | None = None,
) -> ArrayHandle[list[SharedArray]]: ...  # fmt: skip
@overload
def share(
    array: Tree, *, read_only: bool = False, copy: bool = False, stream: Any = None, opens: int | None = None,
    ttl: float | None = None, label: str | None = None,
) -> ArrayHandle[Any]: ...  # fmt: skip
def share(
    array: AnyArray | VirtualRange | Tree,
    *,
    read_only: bool = False,
    copy: bool = False,
    stream: Any = None,
    opens: int | None = None,
    ttl: float | None = None,
    label: str | None = None,
) -> ArrayHandle[Any]:
    """Export an array, or a tree of arrays, without copying it.

    Memory can be shared if it was made by `empty`, `array`, `zeros` or `malloc_*`, or by a library whose driver can
    export it. The export holds the memory until the handle is closed, until this process ends, or until `opens` or
    `ttl` end it. If a handle is garbage-collected without `close()`, `opens` or `ttl`, Python emits a
    `ResourceWarning`.

    A tree is a dict, list, tuple or named tuple, up to 64 levels deep. Its keys are str or int. Besides arrays it may
    hold None, bool, int of 64 bits, float, complex, str, bytes and NumPy scalars, and each of them keeps its type. A
    tree may have no array at all. The whole tree has one handle.

    If this process attached the array, `share` passes on the original handle. This works as long as the exporter lives
    and has not withdrawn that handle. Closing the new handle then withdraws nothing. After `attach(…, own=True)` this
    process exports the array itself.

    Args:
        array: A `SharedArray`, a `Memory`, an array of NumPy, torch, CuPy, JAX or any library with
            DLPack or an array interface, a growable `VirtualRange`, or a tree of these.
        read_only: Gives receivers no writable view. PyTorch ignores the flag: writing to such a tensor crashes the
            process, so `torch.from_dlpack` emits a warning.
        copy: Copies elements that cannot be shared in place into new shared memory, which the
            export owns. `handle.copied_nbytes` reports their size.
        stream: The stream that produces the content: a `Queue`, another library's stream object or a raw stream
            pointer. None means the current stream of the array's library. -1 means that the content is complete.
        opens: Ends the export once it has been attached this many times, at least 1.
        ttl: Ends the export after that many seconds, more than 0. Time during which the machine is suspended does not
            count.
        label: The export's name in `ls` and `shares`, at most 56 bytes.

    Returns:
        A handle that `attach` opens. Its bytes and text may be sent through any channel.

    Raises:
        FeatureNotSupportedError: The memory cannot be shared. The message says what to do instead.
        InvalidArgumentError: `array` is not an array or tree, or is closed, or an option is invalid.
        HandleExpiredError: The array was attached, and its exporter has withdrawn the handle.
        OutOfMemoryError: Memory or file descriptors ran out.
        ForkError: This process is a forked child, and the array belongs to its parent.

    Examples:
        >>> with xs.share({"x": xs.zeros(3), "step": 7}) as handle:
        ...     tree = xs.attach(handle)
        >>> tree["x"].shape, tree["step"]
        ((3,), 7)
    """
    if read_only is not False or copy is not False:
        _expect_bool("read_only", read_only)
        _expect_bool("copy", copy)
    text = None if label is None else label_argument(label)
    handle = shared(array, read_only, copy, stream, opens, ttl)
    if text is not None:
        _label(handle, text)
    return handle


def _expect_bool(option: str, value: object) -> None:
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's own is called `bool_` before NumPy 2
        raise InvalidArgumentError(f"{option} is True or False, not {shown(value)}")


def _label(handle: ArrayHandle[Any], text: str) -> None:
    here = node.current()
    if not all(here.is_own(fields_of(each).cookie) for each in handle.handles):
        handle.close()
        raise InvalidArgumentError(
            "label is for exports of this process, and this memory is passed on by its original handle"
        )
    for each in handle.handles:
        here.table().label(each, text)


def shared(
    array: Any,
    read_only: bool = False,
    copy: bool = False,
    stream: Any = None,
    opens: int | None = None,
    ttl: float | None = None,
    lasting: bool = False,
) -> ArrayHandle:
    """Share as `share` does. With `lasting`, this process itself exports memory that arrived in a pickle, so that the
    export outlives the process that made the memory.
    """
    count = None if opens is None else opens_argument(opens)
    limit = None if ttl is None else _ttl_argument(ttl)
    placing = _placed(array, read_only, copy, stream, lasting)
    handle = _sealed(placing, count, limit)
    if copy and placing.copied:
        logger().info("share copied %d bytes of a private %s", placing.copied, type(array).__name__)
    return handle


def _placed(array: Any, read_only: bool, copy: bool, stream: Any, lasting: bool) -> Placing:
    """Find the memory of an array, or of all arrays of a tree, and the streams that produce the content."""
    found, tree = [array], ONE_ARRAY
    if type(array) is SharedArray:
        pass  # most are; asking for the others takes longer
    elif isinstance(array, _CONTAINERS):
        from xpushare.arrays.containers import flatten, warn_of_numbers

        found, tree = flatten(array)
        if not found:  # exports an empty array, which is not in the tree
            warn_of_numbers(array)
            found = [empty(0, "uint8")]
    elif _is_growable(array):
        from xpushare.arrays.following import described

        directory, tree = described(array, read_only)
        found, read_only = [directory], True
    placing = Placing(found, read_only, KINDS)
    if tree is not ONE_ARRAY:
        placing.tree = tree
    if copy or lasting or stream is not None:
        placing.ask(copy, stream, lasting)
    try:
        placing.place()
    except XpuShareError as error:
        if tree is not ONE_ARRAY:
            from xpushare.arrays.containers import with_path

            with_path(error, tree, placing.at)
        raise
    return placing


def _is_growable(array: Any) -> bool:
    """Return whether it is a `VirtualRange` that grows."""
    if not isinstance(array, DeviceObject):
        return False
    from xpushare.objects.physical_memory import VirtualRange, is_growable

    return type(array) is VirtualRange and is_growable(array)


@final
class Placed:
    """Arrays whose content has been written completely, so that another process (the keeper) can export them."""

    __slots__ = ("_placing", "ranges")

    def __init__(self, placing: Placing, ranges: list[Range]) -> None:
        self.ranges = ranges
        self._placing = placing

    def sealed(self, handles: list[Handle]) -> bytes:
        """Return the bytes of an `ArrayHandle` for the arrays. `handles` has one handle for each range in `ranges`."""
        return bytes(_message(self._placing, tuple(handles), ()))


def placed_for_others(array: Any, copy: bool) -> Placed:
    """Find the memory of an array, or of all arrays of a tree, for another process to export. With `copy`, arrays that
    cannot be shared in place are copied. Waits until the content is complete.
    """
    if _is_growable(array):
        raise FeatureNotSupportedError("the memory of a range that grows ends with the process that made it")
    placing = _placed(array, False, copy, None, lasting=True)
    from xpushare.core.ordering import finish

    for work in placing.works():
        finish(work, work.device)
    return Placed(placing, placing.ranges(()))


def _sealed(placing: Placing, opens: int | None, ttl: int | None) -> ArrayHandle:
    """Export the placed arrays, and make the handle that owns the exports. The first export keeps all other exports
    alive, including those of events. `opens` and `ttl` apply to the first export.
    """
    works: Sequence[Work] = ()
    marks: Sequence[Mark] = ()
    special = placing.special
    if special and (placing.streams or placing.named):
        from xpushare.core.ordering import mark

        works = placing.works()
        marks = [mark(work, work.device) for work in works]
    ranges = placing.ranges(works) if works else placing.groups()
    if special and placing.passes_on:
        return _passed_on(placing, ranges, opens is not None or ttl is not None)
    first = ranges[0]
    handles: tuple[Handle, ...] = ()
    if len(ranges) > 1 or marks:
        held: list[object] = [each.export for each in marks]
        if len(ranges) > 1:
            others = ImplicitAll(memory.get_all(ranges[1:], placing.read_only))
            handles = tuple(others.handles)
            held.append(others)
        first = first.replace(lease=(first.lease, *held))
    gate = memory.get(first, None, placing.read_only, opens, False, ttl)
    try:
        made = _message(placing, (gate, *handles) if handles else (gate,), marks)
        made._own()
        if watchers:
            tell_made(made, listed=False)
        return made
    except BaseException:
        node.current().table().withdraw(gate, layout.REASON_PUT)
        raise


def _passed_on(placing: Placing, ranges: list[Range], limited: bool) -> ArrayHandle:
    """Return the handle for arrays that other processes export. This handle owns no export. `limited` says whether the
    caller passed `opens` or `ttl`, which is an error.
    """
    handles = [each.handle for each in ranges if each.handle is not None]
    if limited:
        raise InvalidArgumentError(
            f"opens and ttl are for arrays that this process exports, and this memory is another process's: {OWN}"
        )
    if len(handles) < len(ranges) or len({fields_of(each).cookie for each in handles}) > 1:
        raise InvalidArgumentError(
            f"the arrays of a tree are of one process, and these are of several: {OWN}; or copy them (copy=True)"
        )
    return _message(placing, tuple(handles), ())


def _message(placing: Placing, handles: tuple[Handle, ...], marks: Sequence[Mark]) -> ArrayHandle:
    events = tuple([(each.handle, each.point) for each in marks]) if marks else ()
    text = text_of(placing.dtypes, placing.tree)
    made: ArrayHandle | None = placing.seal(identity.seal or identity.sealing(), handles, events, text)
    if made is None:
        from xpushare.arrays.containers import too_large

        raise too_large()
    return made


def pickle_arrays(found: list[Any], known: Iterable[Allocation], made: dict[Device, list[Handle]]) -> bytes:
    """Return the message for the arrays of a pickle, with their content as of now. `found` has no duplicates. Each
    allocation gets an export of its own, whose handle is added to `made` even if an error follows.

    Whole allocations are exported, so that a receiver of several messages can pass on the memory of one message by the
    handle of another. `known` are allocations that contain some of the arrays.
    """
    from xpushare.arrays.containers import flatten
    from xpushare.core.ordering import mark

    placing = Placing(found, False, KINDS)
    placing.tree = flatten(found)[1]
    placing.special = True
    placing.know(known)
    placing.place()
    works = placing.works()
    marks = [mark(work, work.device) for work in works]
    events = [each.export for each in marks]
    ranges = placing.ranges(works, True)
    if events:
        ranges = [each.replace(lease=(each.lease, events)) for each in ranges]
    handles = memory.get_all(ranges, False, implicit=True)
    for handle, each in zip(handles, ranges, strict=True):
        made.setdefault(each.device, []).append(handle)
    return bytes(_message(placing, tuple(handles), marks))


def opens_argument(opens: int) -> int:
    words = f"is how often the handle may be attached, from 1 to {_OPENS_MAX}"
    return integer("opens", opens, lambda count: 1 <= count <= _OPENS_MAX, words)


def _ttl_argument(ttl: float) -> int:
    """Return `ttl` in nanoseconds. Raises `InvalidArgumentError` unless it is a positive number of seconds."""
    given = seconds("ttl", ttl)
    nanoseconds = given * 1e9
    if not 0 < nanoseconds < 1 << 62:
        raise InvalidArgumentError(f"ttl is a number of seconds above 0, not {given:g}")
    return max(int(nanoseconds), 1)


public(__name__, "share")
