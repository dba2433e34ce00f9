"""`ArrayHandle`: a sealed message that names an array, or a tree of arrays, in shared memory. docs/layout.md describes
its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn

from xpushare import _native
from xpushare._native import (
    MessageState,
)
from xpushare.common import texts
from xpushare.common.elements import dtype_words, expect_numpy
from xpushare.common.errors import InvalidArgumentError, Unread, XpuShareError
from xpushare.common.texts import counted, readable
from xpushare.core.declare import closing, misused, watchers
from xpushare.objects.lifecycle import Closable, advise
from xpushare.objects.message import ONE_ARRAY, content_of, read_message
from xpushare.sharing import layout, node
from xpushare.sharing.handle import Handle, Named, decode_text, encode_text, fields_of, handle_bytes

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import ReadableBuffer
    from typing_extensions import TypeVar

    from xpushare.objects.array import SharedArray
    from xpushare.objects.message import Content
    from xpushare.sharing.table import Table

    T_co = TypeVar("T_co", covariant=True, default="SharedArray")
else:
    from typing import TypeVar  # before Python 3.13 it takes no default

    T_co = TypeVar("T_co", covariant=True)

__all__ = ["ArrayHandle", "expect_open", "is_tree"]

_NO_ARRAY: Final = "this is a handle, not an array: np.asarray(xs.attach(handle))"


class ArrayHandle(MessageState, Named, Closable, Generic[T_co]):
    """A handle of an array or of a tree of arrays. `share` makes it, and `attach` opens it.

    `bytes(h)` and `str(h)` are the whole handle. They may be sent through any channel, and
    `ArrayHandle(h)` parses and verifies them. Handles compare by content, and can be hashed and pickled.

    Only the object that `share` returned owns the export. Closing it, or leaving its `with` block, withdraws the
    handle, so that no process can attach to it any more. Closing a parsed or unpickled handle closes only that object.

    The handle of a tree has `handles`, one for each allocation, and no `handle`, `event`, `shape`,
    `strides` and `dtype`.

    To type checkers, `attach` of an `ArrayHandle[T]` returns a `T`, by default a `SharedArray`. For bytes or text,
    state the type: `xs.ArrayHandle[dict[str, xs.SharedArray]](raw)`.

    Args:
        handle (ArrayHandle | Handle | ReadableBuffer | str): An array handle, its bytes or its text.

    Raises:
        InvalidHandleError: The bytes were altered, or belong to another user or boot.

    Examples:
        >>> with xs.share(xs.zeros(3)) as handle:
        ...     xs.ArrayHandle(str(handle)) == handle
        True
    """

    __slots__ = ()

    _copy_advice = "it owns its export. ArrayHandle(bytes(h)) parses a copy"

    def __new__(cls, handle: ArrayHandle[T_co] | Handle | ReadableBuffer | str, /) -> ArrayHandle[T_co]:
        if type(handle) is bytes:
            raw = handle
        elif isinstance(handle, ArrayHandle):
            return handle
        elif isinstance(handle, str):
            raw = decode_text(handle)
        elif isinstance(handle, Handle):
            raw = bytes(handle)
        else:
            raw = handle_bytes(
                handle,
                "`attach` takes what `xs.share` returned (ArrayHandle, bytes or str)",
                "this is the array itself: use `np.asarray(a)`. `attach` takes what `xs.share(a)` returned",
            )
        found: ArrayHandle[T_co] = read_message(raw)
        return found

    def _one(self, name: str) -> Content:
        """Return an attribute of the handle's only array. Raises AttributeError if the handle names a tree."""
        content = content_of(self)
        if content.tree is not ONE_ARRAY:
            _refuse(name)
        return content

    @property
    def handle(self) -> Handle:
        """The handle of the memory that the elements lie in."""
        if is_tree(self):
            _refuse("handle")
        return self.handles[0]

    @property
    def handles(self) -> tuple[Handle, ...]:
        """Handles of the memory that the arrays lie in, one for each allocation."""
        return self._memory

    @property
    def event(self) -> Handle | None:
        """The handle of the event that marks the content as complete, or None if readers do not have to wait."""
        self._one("event")
        events = self._events
        return events[0][0] if events else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements per dimension."""
        self._one("shape")
        return self._elements[0][2]

    @property
    def strides(self) -> tuple[int, ...]:
        """For each dimension, the number of bytes from one element to the next."""
        self._one("strides")
        return self._elements[0][3]

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the elements. If NumPy has none without the package `ml_dtypes` (bfloat16, float8) and that is
        not installed, this raises `InvalidArgumentError`.
        """
        dtype: np.dtype[Any] = self._one("dtype").dtypes[0]
        expect_numpy(dtype)
        return dtype

    @property
    def nbytes(self) -> int:
        """Size of the elements of all arrays in bytes."""
        sizes = content_of(self).itemsizes
        return sum(math.prod(shape) * sizes[dtype] for _, _, shape, _, dtype, _ in self._elements)

    @property
    def read_only(self) -> bool:
        """Whether all of the memory is read-only for importers."""
        return all(handle.read_only for handle in self.handles)

    @property
    def copied_nbytes(self) -> int:
        """The number of bytes that `share(copy=True)` copied, or 0 if all memory was shared in place."""
        return self._copied

    def close(self) -> None:
        """Withdraw the handle if `share` returned this object. Idempotent.

        After that, no process can attach to it any more. Attached arrays stay attached. Closing a parsed or unpickled
        handle closes only this object. If the handle was given to `publish`, it stays valid until the last version
        that it was published as has ended.

        Examples:
            >>> handle = xs.share(xs.zeros(3))
            >>> handle.close()
            >>> handle.closed
            True
        """
        if watchers:
            closing(self, () if self._unread else self.handles)
        # Called from C, so that no interrupt can come between the call and the block.
        (owned,) = map(MessageState._end, (self,))
        if not owned:
            return
        try:
            table = node.current().table_if_any
            if table is not None and not (table.given and table.leave_to_versions(self.handles[0])):
                self._withdraw(table)
        except BaseException:  # an interrupt: closing again ends the rest
            self._own()
            raise

    def _withdraw(self, table: Table) -> None:
        for handle in self.handles:
            table.withdraw(handle, layout.REASON_PUT)  # False if its opens were used up, which ended it

    # The default keeps what is needed at interpreter exit, when module globals are gone.
    def _abandoned(self, _left: Callable[[], bool] = _native.left) -> None:
        """Record that this object, which owns exports, is deleted without `close()`. Warns if nothing else will end the
        exports.
        """
        if _left():
            return
        table = node.current().table_if_any
        if table is None:
            return
        held = table.leave_to_versions(self.handles[0])
        if held is not None:  # it was given to `publish`
            if not held:
                self._withdraw(table)
        elif table.lose(self.handles[0]):
            import warnings

            warnings.warn(
                f"unclosed {self!r} is lost: its memory is held until this process ends. Close it, or share with "
                "opens= or ttl=",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _use(self) -> ArrayHandle[T_co]:
        """Check that the handle is open, as `use` does. Unlike `use`, this allows forked children, since a handle is
        just bytes.
        """
        expect_open(self)
        unread = self._unread
        if unread is not None:
            unread()
        return self

    if not TYPE_CHECKING:

        def __array__(self, *_dtype: object, **_options: object) -> NoReturn:
            raise TypeError(_NO_ARRAY)  # NumPy would make an array of one Python object

        def __getitem__(self, _at: object) -> NoReturn:
            raise TypeError(_NO_ARRAY)

    def __str__(self) -> str:
        return encode_text(bytes(self))

    def _repr_html_(self) -> str:
        unread = self._unread
        if unread is not None:
            return texts.facts("ArrayHandle", {"state": unread})
        first = self.handles[0]
        said: dict[str, Any] = {
            "exporter": f"pid {fields_of(first).pid}", "backend": first.backend,
            "read-only": "yes" if self.read_only else None, "closed": "yes" if self.closed else None,
        }  # fmt: skip
        try:
            if is_tree(self):
                said = {
                    "arrays": _array_count(self),
                    "allocations": len(self.handles),
                    "size": readable(self.nbytes),
                    **said,
                }
            else:
                dtype = dtype_words(self._one("dtype").dtypes[0])
                said = {"shape": self.shape, "dtype": dtype, "size": readable(self.nbytes), **said}
        except XpuShareError as error:
            said["state"] = error
        return texts.facts("ArrayHandle", said)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return texts.bundle(self, include, exclude)

    def __repr__(self) -> str:
        unread = self._unread
        if unread is not None:
            return f"<ArrayHandle that is none here: {unread}>"
        first = self.handles[0]
        more = " read-only" if self.read_only else ""
        more += f", {self.copied_nbytes} bytes copied" if self.copied_nbytes else ""
        more += ", closed" if self.closed else ""
        try:
            tree = is_tree(self)
            what = "" if tree else f"{self.shape} {dtype_words(self._one('dtype').dtypes[0])} "
        except XpuShareError as error:
            return f"<ArrayHandle that cannot be attached here: {error}{more}>"
        if tree:
            what = f"of {_tree(_array_count(self), len(self.handles))}, by pid {fields_of(first).pid}"
            return f"<ArrayHandle {what}{more}>"
        return f"<ArrayHandle {what}on {first.backend}, exported by pid {fields_of(first).pid}{more}>"

    def __eq__(self, other: object) -> bool:
        return bytes(self) == bytes(other) if isinstance(other, ArrayHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(bytes(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (bytes(self),)


advise(
    ArrayHandle,
    **dict.fromkeys((
        "numpy", "copy", "fill", "tolist", "reshape", "item", "sum", "mean", "max", "min", "astype", "T",
    ), _NO_ARRAY),
    unlink="close() withdraws the export. Arrays that are attached stay valid",
)  # fmt: skip


def _array_count(handle: ArrayHandle[Any]) -> int:
    """Return the number of arrays in the tree. For a tree without arrays this is 0, although its message contains one
    array.
    """
    left: list[Any] = [content_of(handle).tree]
    while left:
        x = left.pop()
        if type(x) is int:
            return handle._count
        if type(x) is list and x and x[0] in ("l", "t", "n", "d") and type(x[-1]) is list:
            left += x[-1]
    return 0


def _tree(arrays: int, allocations: int) -> str:
    if not arrays:
        return "a tree without arrays"
    return f"a tree of {counted(arrays, 'array')} in {counted(allocations, 'allocation')}"


def _refuse(name: str) -> NoReturn:
    raise AttributeError(f"this is the handle of a tree, which has no {name}: `handles` has those of its memory")


def is_tree(handle: ArrayHandle[Any]) -> bool:
    """Return whether the handle names a tree of arrays and not one array."""
    tree: Any = content_of(handle).tree
    return tree is not ONE_ARRAY


def expect_open(handle: ArrayHandle[Any]) -> None:
    """Raise `InvalidArgumentError` if the object is closed."""
    if handle.closed:
        raise misused(
            "lifetime",
            InvalidArgumentError(
                "this ArrayHandle is closed: close() was called, or its `with` block has ended. Keep it open until the "
                "receiver has attached"
            ),
            handle,
        )


def _unpickle(raw: bytes) -> ArrayHandle:
    try:
        return ArrayHandle(raw)
    except XpuShareError as error:
        unread: ArrayHandle = MessageState._of(raw, Unread(error))
        return unread


_native.register(ArrayHandle=ArrayHandle)
