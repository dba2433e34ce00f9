"""Lists the objects that this user's processes share, by reading the tables of their exports. Reading changes nothing:
no other process notices it.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import stat
import time
import uuid
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypedDict

from xpushare import _native
from xpushare.common.errors import FeatureNotSupportedError, InvalidHandleError, from_os_error
from xpushare.common.fds import OwnedFd, own_fd
from xpushare.common.foreign import printable, skipping
from xpushare.sharing import identity, layout, node

__all__ = ["Row", "Survey", "Unread", "changed", "command_line", "survey"]

_TABLE: Final = "/memfd:xpushare-table"
_COMMONS: Final = "/memfd:xpushare-commons"
_CHUNK: Final = 1 << 20
_EXPORTER: Final = 0  # the exporter's member index
_ATTACHED: Final = 1


class Row(TypedDict):
    """An object that is shared, or one that is no longer shared but that some process still has open. Memory that
    several processes export, such as that of a channel or of an owner, is one row.

    Attributes:
        kind: `memory`, `physical_memory` or `event`.
        state: `shared` if handles exist that open it. `withdrawn` if none exist, but importers have it open. `left` if,
            in addition, every process that exported it has died.
        nbytes: The size of the memory, or 0 for an event.
        published_nbytes: How many bytes are published under `names`, or None.
        backend: The device's backend.
        device: The device's uuid.
        exporter: The exporter's pid. If several living processes export the memory, it is the one that has done so for
            longest. For a process that is dead, or in a PID namespace that cannot be seen from here, it is the pid that
            the process recorded.
        exporter_name: The exporter's program, or None if it is dead.
        importers: The pids of all other processes that have it open, and 0 for each that cannot be seen from here.
        handles: How many handles of the object can be opened.
        names: The names under which it is published.
        label: The label that its exporter gave it, or an empty string.
        value: For an event, the number up to which every signal has completed.
        pending: For an event, the number of the newest signal that anybody has submitted.
        age: Seconds since the oldest of its exports that is still in the table.
    """

    kind: str
    state: str
    nbytes: int
    published_nbytes: int | None
    backend: str | None
    device: str | None
    exporter: int
    exporter_name: str | None
    importers: list[int]
    handles: int
    names: list[str]
    label: str
    value: int | None
    pending: int | None
    age: int | None


class Unread(NamedTuple):
    """A process of this user that may share something but could not be examined."""

    pid: int
    name: str
    why: str


class Survey(NamedTuple):
    """The result of `survey`."""

    rows: list[Row]
    unread: list[Unread]


class _Open(NamedTuple):
    """A descriptor, in any process, of an exporter's table or commons (the memory that the exporter and its importers
    write).
    """

    pid: int
    fd: int


class _Piece(NamedTuple):
    """A range of a file, in memory. Two exports of the same file have the same inode."""

    kind: str
    inode: int
    begin: int
    end: int


_Found = dict[int, list[_Open]]  # by inode
_Pieces = list[tuple[Row, _Piece | None]]  # None for an object that no file identifies
# Names and the sizes of their objects in bytes, by the cookie of the table, the entry's number and its generation.
_Names = Mapping[tuple[bytes, int, int], tuple[str, int]]


def _expect_resources(error: OSError) -> None:
    """Re-raise the error if it says that this process lacks resources. Such an error says nothing about the examined
    process.
    """
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise from_os_error(error, "looking at what processes share") from error


def _processes() -> Iterator[int]:
    """Return the processes of this user, as far as /proc shows them."""
    me = os.geteuid()
    os.stat("/proc/self/fd")  # raises if /proc is not mounted
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if os.stat(f"/proc/{name}").st_uid == me:
                    yield int(name)
            except OSError:
                pass  # it has ended


def _name(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return printable(file.read().rstrip("\n"))
    except OSError as error:
        _expect_resources(error)
        return None


def command_line(pid: int) -> str | None:
    """Return the process's printable command line, or None if it is not visible."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return printable(file.read(1 << 12).rstrip("\0").replace("\0", " ")) or _name(pid)
    except OSError as error:
        _expect_resources(error)
        return None


def _zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError as error:
        _expect_resources(error)
        return True


def _linked(pid: int) -> list[int]:
    """Return the descriptors of the process whose names are those of an exporter's table or commons (the memory that
    its importers write, too). Raises OSError if the process may not be examined.
    """
    return _native.fds_linked_to(f"/proc/{pid}/fd", _TABLE, _COMMONS)


def _look(pid: int, numbers: list[int], tables: _Found, commons: _Found) -> None:
    """Record which of these descriptors are tables of exports, and which are commons (memory that importers write,
    too). Raises OSError if the process may not be examined.
    """
    for number in numbers:
        try:
            link, what = os.readlink(f"/proc/{pid}/fd/{number}"), os.stat(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue  # closed since
        if stat.S_ISREG(what.st_mode) and link.startswith((_TABLE, _COMMONS)):
            found = tables if link.startswith(_TABLE) else commons
            found.setdefault(what.st_ino, []).append(_Open(pid, number))


def _sealed(fd: int, inode: int, nbytes: int) -> bool:
    """Return whether the descriptor is the memfd with this inode and size, and the size is sealed."""
    try:
        _native.check_memfd(fd, nbytes, inode, exact=True)
    except (OSError, ValueError):
        return False
    return True


def _reopen(opens: list[_Open], inode: int, nbytes: int) -> OwnedFd | None:
    """Open the file with this inode again, read-only, through the first process that permits it."""
    for each in opens:
        try:
            fd = own_fd(os.open, f"/proc/{each.pid}/fd/{each.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            _expect_resources(error)
            continue  # ended, closed, or forbidden
        if _sealed(fd.number, inode, nbytes):
            return fd
    return None


class _Members:
    """The processes attached to a commons, the memory that an exporter and its importers write. If `mine` is true, this
    process is one of them. Then its own locks have to be added, since the kernel does not report them to this process.
    """

    def __init__(self, fd: int, mine: bool) -> None:
        self.fd = fd
        self._mine = mine
        self._known: dict[int, int | None] = {}

    def pid(self, index: int) -> int | None:
        """Return the member's pid in this process's namespace. Return 0 if the pid is not visible, or None if the
        member is dead. All of this comes from the kernel.
        """
        if index not in self._known:
            found = _native.lock_holder(self.fd, layout.LIFE + index)
            self._known[index] = os.getpid() if found is None and self._mine and self._is_me(index) else found
        return self._known[index]

    def _is_me(self, index: int) -> bool:
        record = os.pread(self.fd, layout.MEMBER.size, layout.MEMBERS + index * layout.MEMBER.size)
        if len(record) != layout.MEMBER.size:
            return False
        state, pid, namespace, _since = layout.MEMBER.unpack(record)
        return (state, pid, namespace) == (_ATTACHED, os.getpid(), identity.namespace("pid"))

    def importers(self, mask: bytes) -> list[int]:
        """Return the pids of the living members whose bits are set in `mask`, leaving out the exporter."""
        bits = int.from_bytes(mask, "little") & ~1
        found = []
        while bits:
            index = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            pid = self.pid(index)
            if pid is not None:
                found.append(pid)
        return found


def _data(fd: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Return the parts [begin, end) of a sparse file that hold data."""
    at = 0
    while at < nbytes:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, begin, os.SEEK_HOLE)
        except OSError:  # ENXIO: no data from here on
            return
        yield begin, min(at, nbytes)


def _device(table: int, index: int) -> tuple[str | None, str | None]:
    """Return the backend and uuid of the device number `index` in a table of exports. `table` is the table's file
    descriptor.
    """
    if not 1 <= index <= layout.DEVICE_COUNT:
        return None, None
    at = layout.TABLE_DEVICES + (index - 1) * layout.DEVICE.size
    backend, raw, _pci, _driver = layout.DEVICE.unpack(os.pread(table, layout.DEVICE.size, at))
    name = backend.rstrip(b"\0")
    if not name.isalnum() and not name.replace(b"_", b"").isalnum():
        return None, None
    return name.decode("ascii", "replace"), str(uuid.UUID(bytes=raw))


def _entries(chunk: bytes) -> Iterator[tuple[Any, ...]]:
    """Return the entries in a piece of a table, reduced to the fields that an overview needs."""
    return layout.BRIEF.iter_unpack(chunk[: len(chunk) - len(chunk) % layout.ENTRY_NBYTES])


def changed(chunk: bytes, later: bytes) -> set[int]:
    """Return the numbers of the entries that were replaced, or could not be read again."""
    pairs = itertools.zip_longest(_entries(chunk), _entries(later))
    return {number for number, (entry, again) in enumerate(pairs) if not (entry and again) or entry[0] != again[0]}


def _label(table: int, entry: int, generation: int) -> str:
    raw = os.pread(table, layout.LABEL.size, layout.TABLE_LABELS + entry * layout.LABEL.size)
    if len(raw) < layout.LABEL.size:
        return ""
    of, text = layout.LABEL.unpack(raw)
    return printable(text.rstrip(b"\0").decode(errors="replace")) if of == generation else ""


def _progress(commons: int, slot: int) -> tuple[int, int] | tuple[None, None]:
    """Return an event's value and the number of its newest submitted signal, or (None, None) if there is no such slot.
    A peer wrote the slot's number and the event's words, so none of them is trusted.
    """
    raw = os.pread(commons, layout.SLOT.size, layout.SLOTS + slot * layout.SLOT.size)
    if slot >= layout.SLOT_COUNT or len(raw) < layout.SLOT.size:
        return None, None
    value, word = layout.SLOT.unpack(raw)
    newest = word >> layout.SLOT_NUMBER
    return max(value, newest) if word & layout.SLOT_INSTANT else value, newest


def _rows(table: int, cookie: bytes, members: _Members, claimed: int, names: _Names) -> _Pieces:
    """Return the objects that a table shares, and the ended exports that importers still have open."""
    pid = members.pid(_EXPORTER)
    alive = pid is not None
    who = _name(pid) if pid else None
    now = int(time.time())
    rows: dict[tuple[str, int], Row] = {}
    pieces: dict[tuple[str, int], _Piece | None] = {}
    device_of = functools.cache(functools.partial(_device, table))
    size = layout.HOLDER_NBYTES
    nobody = bytes(size)
    labelled = any(end > layout.TABLE_LABELS for _begin, end in _data(table, layout.TABLE_NBYTES))
    for begin, end in _data(table, layout.DEADLINES):  # the entries end there
        start = max(begin, layout.TABLE_ENTRIES)
        start -= (start - layout.TABLE_ENTRIES) % layout.ENTRY_NBYTES
        for at in range(start, end, _CHUNK):
            chunk = os.pread(table, min(_CHUNK, end - at), at)
            count = len(chunk) // layout.ENTRY_NBYTES
            first = (at - layout.TABLE_ENTRIES) // layout.ENTRY_NBYTES
            masks = os.pread(members.fd, count * size, layout.HOLDERS + first * size)
            later = os.pread(table, count * layout.ENTRY_NBYTES, at)
            gone = changed(chunk, later) if later != chunk else ()
            held = masks != bytes(len(masks))
            for number, entry in enumerate(_entries(chunk)):
                generation, retired, kind, slot, serial, nbytes, exposed, inode, offset, device, since = entry
                if not (generation or retired) or kind not in layout.KINDS or nbytes > exposed:
                    continue
                mask = masks[number * size : (number + 1) * size] if held else nobody
                importers = members.importers(mask) if mask != nobody else ()
                if not importers and not (generation and alive):
                    continue
                if number in gone:
                    continue
                name = layout.KINDS[kind]
                key = name, slot if name == "event" else serial
                row = rows.get(key)
                if row is None:
                    backend, device_uuid = device_of(device)
                    pieces[key] = _Piece(name, inode, offset, offset + nbytes) if inode and name != "event" else None
                    row = rows[key] = {
                        "kind": name, "state": "withdrawn" if alive else "left", "nbytes": nbytes,
                        "published_nbytes": None, "backend": backend, "device": device_uuid,
                        "exporter": pid or claimed, "exporter_name": who, "importers": [], "handles": 0,
                        "names": [], "label": "", "value": None, "pending": None,
                        "age": max(now - since, 0) if since else None,
                    }  # fmt: skip
                    if name == "event":
                        row["value"], row["pending"] = _progress(members.fd, slot)
                elif since:
                    row["age"] = max(row["age"] or 0, now - since)
                if generation and alive:
                    row["state"] = "shared"
                    row["handles"] += 1
                    named = names.get((cookie, first + number, generation)) if names else None
                    if named is not None:
                        row["names"].append(named[0])
                        row["published_nbytes"] = min((row["published_nbytes"] or 0) + named[1], row["nbytes"])
                    if labelled:
                        row["label"] = row["label"] or _label(table, first + number, generation)
                if importers:
                    row["importers"] += [each for each in importers if not each or each not in row["importers"]]
    return [(row, pieces[key]) for key, row in rows.items()]


_STATES: Final = ("shared", "withdrawn", "left")


def _merged(found: _Pieces) -> list[Row]:
    """Return the rows, with one row for each piece of memory, however many processes export it or a part of it."""
    rows = [row for row, piece in found if piece is None]
    pieces = [(piece, row) for row, piece in found if piece is not None]
    pieces.sort(key=lambda each: (each[0].kind, each[0].inode, each[0].begin, -each[0].end, *_precedence(each[1])))
    whole: _Piece | None = None
    for piece, row in pieces:
        if whole is not None and piece[:2] == whole[:2] and piece.end <= whole.end:
            _join(rows[-1], row)
        else:
            whole = piece
            rows.append(row)
    return rows


def _precedence(row: Row) -> tuple[bool, int, int]:
    """Return a sort key, which puts living exporters first, then the oldest."""
    return row["state"] == "left", -(row["age"] or 0), row["exporter"]


def _join(row: Row, other: Row) -> None:
    """Add to a row what another row says about the same memory, or about a part of it."""
    if row["state"] == "left" and other["state"] != "left":
        row["exporter"], row["exporter_name"] = other["exporter"], other["exporter_name"]
    exporters = [other["exporter"]] if other["state"] != "left" else []
    row["state"] = min(row["state"], other["state"], key=_STATES.index)
    more = (each for each in (*exporters, *other["importers"]) if not each or each not in row["importers"])
    row["importers"] = [each for each in (*row["importers"], *dict.fromkeys(more)) if each != row["exporter"]]
    row["handles"] += other["handles"]
    row["names"] += [each for each in other["names"] if each not in row["names"]]
    row["label"] = row["label"] or other["label"]
    if other["published_nbytes"] is not None:
        row["published_nbytes"] = max(row["published_nbytes"] or 0, other["published_nbytes"])
    if other["age"] is not None:
        row["age"] = max(row["age"] or 0, other["age"])


def _read(inode: int, opens: list[_Open], commons: _Found, names: _Names) -> _Pieces:
    """Return the rows of one table, or none if it is not a table or is of another version."""
    table = _reopen(opens, inode, layout.TABLE_NBYTES)
    if table is None:
        return []
    header = layout.TABLE.unpack(os.pread(table.number, layout.TABLE.size, 0))
    magic, version, claimed, cookie, _namespace, _fd, _bell, other = header
    if not any(magic):
        return []  # its process is making it
    if (magic, version) != (layout.TABLE_MAGIC, layout.TABLE_VERSION):
        raise InvalidHandleError(
            f"its table of exports has version {version}, and this is version {layout.TABLE_VERSION}"
        )

    def read() -> _Pieces:
        return _with_commons(table.number, cookie, claimed, other, commons.get(other, []), names)

    # Closing any fd of a commons drops this process's locks on it, by which its members see us alive. So if we are
    # attached, read by our own fd. We cannot become attached meanwhile, since attaching takes this cookie's turn, too.
    return node.current().peers.once(cookie, lambda: None, read)


def _own(inode: int) -> int | None:
    """Return this process's own descriptor of a commons, the memory that an exporter and its importers write."""
    mine: _Found = {}
    me = os.getpid()
    _look(me, _linked(me), {}, mine)
    return mine[inode][0].fd if inode in mine else None


def _with_commons(table: int, cookie: bytes, claimed: int, inode: int, opens: list[_Open], names: _Names) -> _Pieces:
    mine = _own(inode)
    others = None if mine is not None else _reopen(opens, inode, layout.COMMONS_NBYTES)
    fd = mine if others is None else others.number
    if fd is None:
        return []  # no process is attached any more: only a forked child has a copy of the table's fd
    if not _sealed(fd, inode, layout.COMMONS_NBYTES):
        return []
    magic, version, named = layout.COMMONS.unpack(os.pread(fd, layout.COMMONS.size, 0))
    if (magic, version, named) != (layout.COMMONS_MAGIC, layout.TABLE_VERSION, cookie):
        raise InvalidHandleError("the memory that it shares with its importers is damaged, or of another version")
    return _rows(table, cookie, _Members(fd, mine is not None), claimed, names)


def survey(names: _Names | None = None) -> Survey:
    """Examine every process of this user. Raises `FeatureNotSupportedError` if there is no /proc."""
    try:
        return _survey(names or {})
    except OSError as error:
        _expect_resources(error)
        raise FeatureNotSupportedError(
            f"who shares what is read from /proc, which cannot be ({error.strerror}): mount -t proc proc /proc"
        ) from error


def _survey(names: _Names) -> Survey:
    tables: _Found = {}
    commons: _Found = {}
    unread: list[Unread] = []
    for pid in _processes():
        try:
            _look(pid, _linked(pid), tables, commons)
        except PermissionError as error:
            if not _zombie(pid):
                unread.append(Unread(pid, _name(pid) or "?", error.strerror or str(error)))
        except OSError as error:
            _expect_resources(error)  # otherwise the process has ended
    found: _Pieces = []
    for inode, opens in tables.items():
        with skipping(f"what process {opens[0].pid} shares"):
            found += _read(inode, opens, commons, names)
    rows = _merged(found)
    rows.sort(key=itemgetter("nbytes"), reverse=True)
    rows.sort(key=itemgetter("exporter", "kind"))  # of those alike, the largest first as before
    return Survey(rows, sorted(unread))
