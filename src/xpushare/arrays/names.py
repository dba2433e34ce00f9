"""Names for shared objects: `publish`, `lookup`, `watch`, `published`, `unpublish`. `sharing.naming`
manages the files.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, Self, TypeVar, final, overload

from xpushare import _native
from xpushare.arrays.changes import Awaitable, Changes, Patience
from xpushare.arrays.keep import keep_by_name
from xpushare.arrays.place import passed_on
from xpushare.arrays.share import shared
from xpushare.common import system, texts
from xpushare.common.errors import (
    ForkError,
    HandleExpiredError,
    InvalidArgumentError,
    InvalidHandleError,
    XpuShareError,
    doing,
)
from xpushare.common.fds import OwnedFd
from xpushare.common.foreign import skipping
from xpushare.common.loading import logger
from xpushare.common.numbers import integer
from xpushare.common.texts import readable
from xpushare.core import event, memory, physical
from xpushare.core.declare import public
from xpushare.objects.array import Memory
from xpushare.objects.array_handle import ArrayHandle, expect_open
from xpushare.objects.event import Event
from xpushare.objects.lifecycle import use
from xpushare.objects.message import NBYTES_MAX
from xpushare.objects.physical_memory import PhysicalMemory
from xpushare.sharing import identity, layout, naming, node
from xpushare.sharing.handle import Handle, fields_of, following
from xpushare.sharing.lives import Publisher
from xpushare.sharing.locked_files import inode_at, inode_of
from xpushare.sharing.survey import Row, Survey, survey

if TYPE_CHECKING:
    from xpushare.adapters.array_types import AnyArray, Tree
    from xpushare.arrays.attach import Attached
    from xpushare.objects.physical_memory import VirtualRange

__all__ = ["Lost", "Watch", "lookup", "publish", "published", "shares", "survey_named", "unpublish", "watch"]


@dataclass(frozen=True, slots=True)
class Lost:
    """Reports that the publisher of a name has ended. `watch(lost=True)` yields such objects.

    Examples:
        >>> xs.Lost(4711)
        Lost(pid=4711)
    """

    pid: int
    """The publisher's pid in this process's pid namespace, or 0 if it is not visible there."""


_SHOWN: Final = 32  # names in a message

Item = TypeVar("Item", bound="Handle | ArrayHandle[Any] | Lost")


@doing("publishing a name")
def publish(
    name: str,
    obj: AnyArray | Tree | VirtualRange | PhysicalMemory | Event | Handle | ArrayHandle[Any],
    *,
    replace: bool = False,
    versions: int = 1,
    keep: bool = False,
    copy: bool = False,
) -> int:
    """Publish an object under a name, so that every process of this user can find it with `lookup`.

    The name and its export last until `unpublish`, or until this process ends. A process that looks the name up during
    a replacement gets either the old or the new version. Objects that are already open stay open.

    Args:
        name: 1 to 128 of the characters `A-Z a-z 0-9 . _ -`, not beginning with a dot.
        obj: An array or tree that `share` takes, a `Memory`, `PhysicalMemory` or `Event`, or a
            handle that this process made. A handle stays valid until it is closed or dropped and every version that it
            was published as has ended, so `xs.publish(name, xs.share(x, copy=True), replace=True)` keeps nothing of
            the versions before.
        replace: Replaces the object that this process has published under the name.
        versions: How many versions to keep for `lookup(version=)`, including this one, at most 64. The memory of each
            stays allocated.
        keep: Hands the memory to the keeper, a process of this user that is started if none runs. It holds the memory
            until `xpushare keep --drop NAME`, even after this process has ended. If any part of the object cannot be
            kept, nothing is published.
        copy: Copies arrays that cannot be shared in place, as `share` does. The copy ends with its version.

    Returns:
        The number of the version, which `lookup` gives as `handle.version`. Each version of a name has a larger number
        than the one before, even if another process published that one.

    Raises:
        InvalidArgumentError: The name is invalid, or a living process has published it, or `obj`
            cannot be shared under a name, or `copy` was passed for an object that is not an array or a tree.
        HandleExpiredError: The array came from another process, which has withdrawn its handle.
        FeatureNotSupportedError: The memory cannot be shared, or the keeper cannot hold it (for example `cudaMalloc`
            memory).
        OutOfMemoryError: The keeper's limit is reached, or memory ran out.

    Examples:
        >>> version = xs.publish("weights", xs.array([1.0, 2.0]))
        >>> np.asarray(xs.attach(xs.lookup("weights"))).tolist()
        [1.0, 2.0]
        >>> xs.unpublish("weights")
    """
    if isinstance(obj, Handle | ArrayHandle):
        _give(obj)  # first, since it counts even if the call fails
    if isinstance(obj, str) and not isinstance(name, str):
        raise InvalidArgumentError("the name comes first: xs.publish(name, array)")
    naming.check_name(name)
    count = _versions_argument(versions)
    if copy and isinstance(obj, Handle | ArrayHandle | Memory | PhysicalMemory | Event):
        raise InvalidArgumentError(
            f"copy=True is for an array or a tree of arrays, which publish shares itself, not for {_of_type(obj)}"
        )
    if keep:
        return keep_by_name(name, obj, bool(replace), count, bool(copy))
    return naming.publish(name, replace, count, partial(_export, obj, bool(copy)), _withdraw)


def _of_type(obj: object) -> str:
    name = type(obj).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _give(handle: Handle | ArrayHandle[Any]) -> None:
    """Record that a handle was given to `publish`, before anything can fail, so that an array's handle that nobody else
    has ends even if it is not published. A plain `Handle` that is not published stays until `put`.
    """
    if isinstance(handle, ArrayHandle):
        expect_open(handle)
    fields = fields_of(_handles_of(handle)[0])
    if node.current().is_own(fields.cookie):
        node.current().table().give(fields)


def _versions_argument(versions: int) -> int:
    if isinstance(versions, bool):
        raise InvalidArgumentError("versions is an integer, not bool")
    words = f"is how many to keep, from 1 to {naming.VERSIONS_MOST}"
    return integer("versions", versions, lambda count: 1 <= count <= naming.VERSIONS_MOST, words)


@doing("unpublishing a name")
def unpublish(name: str) -> None:
    """Remove a name of this process, and withdraw the export that `publish` made for it.

    Objects that other processes have opened stay open.

    Args:
        name: A name that this process has published.

    Raises:
        InvalidArgumentError: This process has not published that name.

    Examples:
        >>> version = xs.publish("short-lived", xs.zeros(3))
        >>> xs.unpublish("short-lived")
        >>> "short-lived" in xs.published()
        False
    """
    naming.check_name(name)
    naming.unpublish(name)


@doing("looking for names")
def published() -> dict[str, Handle | ArrayHandle[Any]]:
    """List the names that living processes of this user have published.

    A name that this process cannot read, for example that of an incompatible version of this package, is left out, and
    a warning is logged. `lookup` of that name raises the reason.

    Returns:
        The handles by name.

    Raises:
        DeviceError: The runtime folder cannot be read.

    Examples:
        >>> version = xs.publish("frames", xs.zeros(3))
        >>> xs.published()["frames"].version == version
        True
        >>> xs.unpublish("frames")
    """
    folder = naming.names_folder()
    found: dict[str, Handle | ArrayHandle[Any]] = {}
    with naming.lock:
        for name in sorted(naming.living(folder)):
            with skipping(f"the published name {name!r}"):
                handle = _read(folder, name)
                if handle is not None:
                    found[name] = handle
    return found


@doing("looking for a name")
def lookup(name: str, *, timeout: float | None = None, version: int | None = None) -> Handle | ArrayHandle[Attached]:
    """Return the handle of the object that is published under a name. Waits until a process publishes it.

    Open the handle with `attach` or `ipc.*.open`. If the handle has expired because the name was published again, these
    functions open the newest version. The handle's bytes, text and pickle do not contain the name.

    Args:
        name: The name that was given to `publish`.
        timeout: Seconds to wait. None waits without a limit, and logs a warning after a while. 0 does not wait.
        version: Returns only this version. Waits if it has not been published yet.

    Returns:
        The handle. Its `version` is the number that `publish` returned. The publisher owns the export, so closing this
        handle withdraws nothing.

    Raises:
        TimeoutError: No process published the name in time.
        HandleExpiredError: The requested version is older than all kept versions.
        InvalidArgumentError: The name is invalid.

    Examples:
        >>> version = xs.publish("frames", xs.zeros((2, 2)))
        >>> handle = xs.lookup("frames", timeout=5)
        >>> handle.version == version, xs.attach(handle).shape
        (True, (2, 2))
        >>> xs.unpublish("frames")
    """
    naming.check_name(name)
    timeout = event.timeout_argument(timeout)
    if version is not None:
        return _lookup_version(name, timeout, version)
    folder = naming.names_folder()
    with naming.lock:
        naming.reap(folder)
        found = _read(folder, name)
    if found is not None:
        return found
    with watch(name, timeout=timeout) as versions:
        return next(versions)


def _lookup_version(name: str, timeout: float | None, version: int) -> Handle | ArrayHandle[Any]:
    version = integer("version", version, lambda number: number >= 0, "is a number that publish returned")
    end = None if timeout is None else time.monotonic() + timeout
    folder = naming.names_folder()
    versions: Watch[Handle | ArrayHandle[Any]]
    with Watch(name, timeout, False) as versions:
        while True:
            with naming.lock:
                found = _read(folder, name, version=version)
            if found is not None:
                return found
            left = None if end is None else max(end - time.monotonic(), 0.0)
            try:
                versions.next(left)
            except TimeoutError:
                raise TimeoutError(f"version {version} of {name!r} has not come within {timeout:g} s") from None


@overload
def watch(
    name: str, *, timeout: float | None = None, lost: Literal[False] = False
) -> Watch[Handle | ArrayHandle[Any]]: ...
@overload
def watch(name: str, *, timeout: float | None = None, lost: bool) -> Watch[Handle | ArrayHandle[Any] | Lost]: ...
def watch(name: str, *, timeout: float | None = None, lost: bool = False) -> Watch[Any]:
    """Iterate over the versions of a name. The first is the newest version, and each later version follows when it is
    published.

    Use the result in `for` or, under asyncio and trio, in `async for`. The iteration waits while no process publishes
    the name. It never ends by itself, so use `break`, `close` or cancellation. Versions that were replaced before you
    asked for them are skipped.

    Args:
        name: The name that was given to `publish`.
        timeout: Seconds to wait for each item. None waits without a limit.
        lost: Whether to yield `Lost(pid)` when the process that published the last version has ended. The watch then
            waits for the next publisher.

    Returns:
        An iterator of handles, as from `lookup`. It can be closed, and used in a `with` block.

    Raises:
        TimeoutError: No version came in time. You may continue with the same watch.
        InvalidArgumentError: The name is invalid, or another thread closed the watch.

    Examples:
        >>> version = xs.publish("weights", xs.zeros(3))
        >>> with xs.watch("weights", timeout=5) as versions:
        ...     next(versions).version == version
        True
        >>> xs.unpublish("weights")
    """
    return Watch(name, event.timeout_argument(timeout), bool(lost))


# --- who shares what


def survey_named() -> Survey:
    """Return everything that processes of this user share, with the names that they have published."""
    names: dict[tuple[bytes, int, int], tuple[str, int]] = {}
    try:
        for name, handle in published().items():
            with skipping(f"the published name {name!r}"):
                for fields in map(fields_of, _handles_of(handle)):
                    names[fields.cookie, fields.entry, fields.generation] = name, fields.nbytes
    except XpuShareError:
        pass  # there is no trustworthy runtime folder, and so no names
    return survey(names)


class Shares(list[Row]):
    """A list of rows that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        columns = "state", "kind", "size", "exporter", "importers", "handles", "names", "label"
        lines = [
            (
                row["state"], row["kind"], "" if row["kind"] == "event" else readable(row["nbytes"]),
                f"{row['exporter']} {row['exporter_name'] or ''}", " ".join(map(str, row["importers"])), row["handles"],
                " ".join(row["names"]), row["label"],
            )
            for row in self
        ]  # fmt: skip
        return texts.table(columns, lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return texts.bundle(self, include, exclude)


def shares() -> Shares:
    """List what all processes of this user share, as `xpushare ls` prints it.

    Returns:
        One row per object, with `kind`, `state`, `nbytes`, `published_nbytes`, `backend`, `device`, `exporter`,
        `exporter_name`, `importers`, `handles`, `names`, `label`, `value`, `pending` and `age`. In
        a notebook the list is shown as a table.

    Raises:
        FeatureNotSupportedError: There is no /proc.

    Examples:
        >>> with xs.share(xs.zeros(1000), label="scratch"):
        ...     [row["kind"] for row in xs.shares() if row["label"] == "scratch"]
        ['memory']
    """
    return Shares(survey_named().rows)


# --- files


def _content(fd: OwnedFd, name: str, version: int | None) -> tuple[bytes, int | None] | None:
    """Return the handle's bytes and the version number from a name's file. `version` selects a version. None selects
    the newest. Return None if the version has not been published yet. The number is None if the file has another
    format. Raises `HandleExpiredError` if the version is no longer kept.
    """
    with doing("reading a published file"):
        head = os.pread(fd.number, naming.HEAD.size + naming.VERSIONS_MOST * naming.ENTRY.size, 0)
        if not head.startswith(naming.MAGIC):  # the parser of the handle raises the reason
            return os.pread(fd.number, min(naming.stat_of(fd).st_size, NBYTES_MAX + 1), 0), None
        count, found = struct.unpack_from("<HH", head.ljust(naming.HEAD.size, b"\0"), len(naming.MAGIC))
        layout.expect_version(f"the file of the name {name!r}", found, naming.FORMAT)
        at = naming.HEAD.size + count * naming.ENTRY.size
        if not 1 <= count <= naming.VERSIONS_MOST or at > len(head):
            raise InvalidHandleError(f"what is published as {name!r} is not a list of versions: remove the file")
        entries = list(naming.ENTRY.iter_unpack(head[naming.HEAD.size : at]))
        for number, nbytes in entries:
            if version in (None, number):
                return os.pread(fd.number, min(nbytes, NBYTES_MAX + 1), at), number
            at += nbytes
    assert version is not None
    if version < entries[0][0]:
        raise _version_expired(name, version, [number for number, _nbytes in entries])
    return None


def _version_expired(name: str, version: int, kept: Sequence[int]) -> HandleExpiredError:
    """Return the error for a version that is older than all kept versions. `kept` has the numbers of the kept versions,
    the newest first.
    """
    newest, oldest = kept[0], kept[-1]
    there = f"versions {oldest} to {newest} are kept" if len(kept) > 1 else f"only version {newest} is kept"
    return HandleExpiredError(
        f"version {version} of {name!r} is not there: {there}. A version that was replaced is not kept any more: "
        "publish with versions=n to keep the last n, or look up a newer one"
    )


def _own_content(own: naming.Published, name: str, version: int | None) -> tuple[bytes, int] | None:
    """Return the content and the version, as `_content` does, for a name of this process."""
    kept = own, *own.older
    for each in kept:
        if version in (None, each.version):
            return bytes(each.handle), each.version
    assert version is not None
    if version < own.version:
        raise _version_expired(name, version, [each.version for each in kept])
    return None


def _read(
    folder: Path, name: str, publishers: list[Publisher] | None = None, version: int | None = None
) -> Handle | ArrayHandle[Any] | None:
    """Return the handle under a name, or None if no living process has published it. If another process has published
    it, that process is appended to `publishers`. `version` is as for `_content`.
    """
    own = naming.names.get(name)
    if own is not None and own.path == folder / name:
        found: tuple[bytes, int | None] | None = _own_content(own, name, version)
    else:
        while True:
            fd = naming.open_file(folder / name)
            if fd is None:
                return None
            expired: HandleExpiredError | None = None
            found = None
            try:
                found = _content(fd, name, version)
            except HandleExpiredError as error:  # raised only if the publisher is alive
                expired = error
            publisher = naming.publisher_of(fd)
            if publisher is not None:
                if expired is not None:
                    raise expired
                if publishers is not None:
                    publisher.watch()
                    publishers.append(publisher)
                break
            if inode_at(folder / name) == inode_of(naming.stat_of(fd)):
                return None
            # Another publisher has replaced the file: look again.
    if found is None:
        return None
    raw, number = found
    if version is None:
        return _following(raw, name, lambda: _newest(folder, name), number)
    return _following(raw, name, lambda: _pinned(folder, name, version), number)


def _pinned(folder: Path, name: str, version: int) -> Handle | ArrayHandle[Any] | None:
    """Look up a version of a name again, for a handle of this version that has expired. Return None if no living
    process has published it. Raises `HandleExpiredError` if the version is no longer kept.
    """
    with naming.lock:
        return _read(folder, name, version=version)


def _newest(folder: Path, name: str) -> Handle | ArrayHandle[Any] | None:
    with naming.lock:
        return _read(folder, name)


@final
class _Look:
    """Looks up a name again when called, and returns its current handle. `version` is the version that the first
    look-up found.
    """

    __slots__ = ("_look", "version")

    def __init__(self, look: Callable[[], Handle | ArrayHandle[Any]], version: int | None) -> None:
        self._look = look
        self.version = version

    def __call__(self) -> Handle | ArrayHandle[Any]:
        return self._look()


def _following(
    raw: bytes, name: str, look: Callable[[], Handle | ArrayHandle[Any] | None], version: int | None
) -> Handle | ArrayHandle[Any]:
    """Return the handle with these bytes. `look` returns the current handle of the name, for when this handle has
    expired.
    """
    handle = Handle(raw) if len(raw) == Handle.NBYTES else ArrayHandle(raw)
    exporter = _handles_of(handle)[0].exporter
    pid = exporter.pid if exporter.pid_namespace == identity.namespace("pid") else 0

    def newest() -> Handle | ArrayHandle[Any]:
        found = look()
        if found is None:
            raise _expired(name, pid)
        return found

    return following(handle, _Look(newest, version))


def _expired(name: str, pid: int) -> HandleExpiredError:
    """Return the error for a handle whose name is no longer published. `pid` is the former publisher's pid, or 0 if
    this process cannot see that process.
    """
    again = f"look the name up again: xs.lookup({name!r}, timeout=…) waits for the next publisher"
    if pid and _ended_by_now(pid):
        return HandleExpiredError(
            f"the process that published {name!r} (pid {pid}) has exited. Keep it running until the receiver has "
            f"attached, or {again}"
        )
    who = f"its publisher (pid {pid}) has unpublished it" if pid else "its publisher has unpublished it, or has exited"
    return HandleExpiredError(
        f"the name {name!r} has expired: {who}. Keep it published until the receiver has attached, or {again}"
    )


def _ended_by_now(pid: int) -> bool:
    try:
        return bool(_native.dead([system.pidfd_open(pid).number]))
    except ProcessLookupError:
        return True
    except OSError:  # the process is not visible here
        return False


# --- exports


def _export(obj: Any, copy: bool, new: naming.Published) -> None:
    """Set the handle of the new version `new`. If `obj` is a handle, use it. Otherwise export `obj`."""
    if isinstance(obj, Handle | ArrayHandle):
        fields = fields_of(_handles_of(obj)[0])
        if not node.current().is_own(fields.cookie):
            raise InvalidArgumentError(f"only the exporter publishes a handle: this is of process {fields.pid}")
        new.exports.append(_Held(obj))  # first, so that an interrupt leaves nothing held
        new.exports[0].begin()
        new.handle = bytes(obj)
        return
    export: Callable[[Any], Handle | ArrayHandle[Any]]
    if isinstance(obj, Memory):
        export, obj = memory.get, use(obj)
        if obj.borrowed:
            passed_on(obj, False, lasting=True)  # this makes the process an owner of memory that came by a pickle
    elif isinstance(obj, PhysicalMemory):
        export, obj = physical.get, use(obj)
    elif isinstance(obj, Event):
        export, obj = event.get, use(obj)
    else:
        export = partial(shared, copy=copy, lasting=True)
    new.exports.extend(map(export, (obj,)))  # one C call, so that no interrupt can come between
    new.handle = new.exports[0]


def _handles_of(handle: Handle | ArrayHandle[Any]) -> tuple[Handle, ...]:
    """Return the handles of the exports behind a handle."""
    return (handle,) if isinstance(handle, Handle) else handle.handles


@final
class _Held:
    """A version's hold on a handle that was given to `publish`."""

    __slots__ = ("_array", "_fields")

    def __init__(self, handle: Handle | ArrayHandle[Any]) -> None:
        self._array = handle if isinstance(handle, ArrayHandle) else None
        self._fields = fields_of(_handles_of(handle)[0])

    def begin(self) -> None:
        node.current().table().give(self._fields, self)

    def end(self) -> None:
        """Give up the hold. If it was the last one on the handle, end the exports. Idempotent."""
        table, array = node.current().table(), self._array
        last = table.take_back(self._fields, self, array is None)
        if last is not None:
            table.withdraw_all([last] if array is None else array.handles, layout.REASON_PUT)


def _withdraw(handle: Handle | ArrayHandle[Any] | _Held) -> None:
    if isinstance(handle, _Held):
        handle.end()
    elif isinstance(handle, ArrayHandle):
        handle.close()
    else:
        memory.withdraw(handle, handle.kind)


# --- waiting


@final
class Watch(Awaitable, Generic[Item]):
    """An iterator over the versions of a name, made by `watch`. If several threads iterate over this object, each
    version goes to only one of them.

    Examples:
        >>> with xs.watch("weights") as versions:
        ...     versions
        <Watch of 'weights'>
    """

    __slots__ = (
        "_awaited", "_changes", "_closed", "_folder", "_forks", "_lost", "_name", "_publisher", "_seen", "_timeout",
    )  # fmt: skip

    def __init__(self, name: str, timeout: float | None, lost: bool) -> None:
        naming.check_name(name)
        self._name = name
        self._folder = naming.names_folder()
        self._timeout = timeout
        self._lost = lost
        self._publisher: Publisher | None = None  # publisher of the newest version seen, if its end has to be reported
        self._changes: Changes | None = None  # None until the first wait
        self._seen: bytes | None = None
        self._closed = False
        self._awaited = False
        self._forks = _native.forks()

    def next(self, timeout: float | None = None) -> Item:
        """Wait for the next item.

        Args:
            timeout: Seconds to wait, by default the timeout of the watch.

        Returns:
            A handle, or `Lost`.

        Raises:
            TimeoutError: No item came in time.
            InvalidArgumentError: The watch is closed.

        Examples:
            >>> version = xs.publish("weights", xs.zeros(3))
            >>> with xs.watch("weights") as versions:
            ...     versions.next(timeout=5).version == version
            True
            >>> xs.unpublish("weights")
        """
        timeout = self._timeout if timeout is None else event.timeout_argument(timeout)
        wait = Patience(timeout)
        while (found := self._newer()) is None:
            left = _left(wait, self._name, timeout, self._seen is not None)
            self._watching().wait(left, *self._end())
        return found

    async def _next(self) -> Item:
        wait = Patience(self._timeout)
        while (found := self._newer()) is None:
            if self._awaited:
                raise InvalidArgumentError("another task waits on this watch: give each its own")
            self._awaited = True
            try:
                left = _left(wait, self._name, self._timeout, self._seen is not None)
                await self._watching().changed(left, *self._end())
            finally:
                self._awaited = False
        return found

    def _expect_usable(self) -> None:
        if self._forks != _native.forks():
            raise ForkError("this watch is of the process that forked: make one here")
        if self._closed:
            raise InvalidArgumentError("this watch is closed: make another with xs.watch")

    def _newer(self) -> Item | None:
        """Return the next item: `Lost`, or a version that was not yielded before. Return None if there is none yet."""
        self._expect_usable()
        found: Any = None
        with naming.lock:
            publisher, seen = self._publisher, self._seen
            if publisher is not None and publisher.ended():
                self._publisher = None
                found = Lost(publisher.pid)
            else:
                newest = self._newest()
                found = None if self._seen == seen else newest
        version: Item | None = found
        return version

    def _newest(self) -> Handle | ArrayHandle[Any] | None:
        """Return the newest version of the name, and mark it as seen. Return None if the name is not published. If a
        newer version replaces the result before the caller opens it, opening the result yields the newer version, and
        marks that one as seen, too.
        """
        publishers: list[Publisher] | None = [] if self._lost else None
        with naming.lock:
            found = _read(self._folder, self._name, publishers)
            if found is None:
                return None
            raw = bytes(found)
            if raw != self._seen:
                self._seen = raw
                self._publisher = publishers[0] if publishers else None
        return _following(raw, self._name, self._newest, found.version)  # it may have been replaced by now, too

    def ready(self) -> bool:
        """Return whether the next item is available. Call `next` to get it.

        Returns:
            True if `next` would return at once.

        Raises:
            InvalidArgumentError: The watch is closed.

        Examples:
            >>> with xs.watch("nobody-has-this-name") as versions:
            ...     versions.ready()
            False
        """
        self._expect_usable()
        with naming.lock:
            publisher, seen = self._publisher, self._seen
            if publisher is not None and publisher.ended():
                return True
            found = _read(self._folder, self._name)
        return found is not None and bytes(found) != seen

    def _woken_by(self) -> tuple[Changes, OwnedFd | None, bool]:
        return self._watching(), *self._end()

    def _watching(self) -> Changes:
        with naming.lock:
            if self._closed:
                raise InvalidArgumentError("this watch is closed: make another with xs.watch")
            if self._changes is None:
                self._changes = Changes(self._folder, again=naming.names_folder)
            return self._changes

    def _end(self) -> tuple[OwnedFd | None, bool]:
        """Return the `pidfd` and `look` arguments for `Changes.wait`, which make the wait end with the publisher.
        `look` is true if there is no pidfd, so that polling has to detect the end.
        """
        publisher = self._publisher
        return (None, False) if publisher is None else (publisher.pidfd, publisher.pidfd is None)

    def close(self) -> None:
        """End the watch, and the waits of other threads. Idempotent.

        Examples:
            >>> versions = xs.watch("weights")
            >>> versions.close()
            >>> versions
            <Watch of 'weights' closed>
        """
        with naming.lock:
            self._closed = True
            changes, self._changes = self._changes, None
            self._publisher = None
        if changes is not None and self._forks == _native.forks():
            changes.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        return self.next()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        return await self._next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Watch cannot be copied or pickled: it belongs to its process. Send the name")

    def __repr__(self) -> str:
        return f"<Watch of {self._name!r}{' closed' if self._closed else ''}>"


def _left(wait: Patience, name: str, timeout: float | None, seen: bool) -> float | None:
    """Return how many seconds to wait before the next look-up, or None for no limit. `seen` says whether the caller has
    already seen a version. Raises `TimeoutError` if the timeout has passed.
    """
    left = wait.left(None if seen else partial(_warn, name))
    if left != 0:
        return left
    if seen:
        raise TimeoutError(f"no new version of {name!r} has come within {timeout:g} s")
    from difflib import get_close_matches

    others = _some_names()
    near = get_close_matches(name, others, 1)
    advice = (
        f"Did you mean {near[0]!r}?"
        if near
        else f"Have the other process call xs.publish({name!r}, array), or wait longer"
    )
    raise TimeoutError(
        f"nobody has published {name!r} within {timeout:g} s (published now: "
        f"{', '.join(others) or 'nothing'}). {advice}"
    )


def _some_names() -> list[str]:
    """Return the names that processes have published, for a message. If there are many, "…" stands for the others."""
    with naming.lock:
        found = sorted(naming.living(naming.names_folder(), _SHOWN + 1))
    return [*found[:_SHOWN], "…"] if len(found) > _SHOWN else found


def _warn(name: str, waited: float) -> None:
    others = ", ".join(_some_names()) or "none"
    logger().warning(
        "lookup has waited %.0f s for %r, which nobody has published; published in %s: %s",
        waited,
        name,
        naming.names_folder(),
        others,
    )


public(__name__, "publish", "unpublish", "published", "lookup")
public(Watch, "next", brief=lambda watch: watch._name, __anext__="Watch.next", close="Watch.close")
