"""The compiled part: atomics, futexes, mappings, buffers, DLPack capsules, shared event slots and the warden thread.

Mechanism only: no policy, no vendor code. Offsets are those of docs/layout.md, the event protocol is
docs/events-protocol.md. Failing system calls raise `OSError` with errno and the call's name. Nothing here takes or
holds the GIL while it blocks.
"""

from collections.abc import Callable, Hashable, Sequence
from os import PathLike
from typing import Any, Final, Literal, NoReturn, Self, TypeVar, final, overload

from xpushare.common.errors import Unread

_Handle = TypeVar("_Handle")
Handle = Any  # sharing.handle.Handle, objects.array_handle.ArrayHandle, objects.array.SharedArray: they are above this
ArrayHandle = Any
SharedArray = Any

# --- the protocol's declarations, of src/native/engine/layout.h -------------------------------------------------------
STRUCTS: Final[dict[str, dict[str, tuple[int, str]]]]  # structure -> field -> offset and `struct` code, in order
LAYOUT: Final[dict[str, int]]  # "structure.field" and other places and sizes
CONSTANTS: Final[dict[str, int]]
MAGICS: Final[dict[str, bytes]]

def register(**classes: type) -> None:
    """Register the classes of which native code makes objects, each a subclass of its native base: `Allocation`,
    `ArrayHandle`, `Handle`, `Range` and `SharedArray`. Each name is registered once. Native code calls no constructor.
    """

# --- processes --------------------------------------------------------------------------------------------------------
def forks() -> int:
    """How many forks led to this process (pthread_atfork): differs between a parent and its child."""

def left() -> bool:
    """Whether this process has left: from then on, the kernel cleans up what dies."""

def set_left(left: bool, /) -> None: ...
def pidfd_getfd(pidfd: int, fd: int) -> int:
    """Duplicate `fd` of the process behind `pidfd`; close-on-exec. pidfd_getfd(2)."""

@final
class OwnedFd:
    """One file descriptor with one owner: closed when this dies, unless taken out by `take`.

    Always above 2, where nobody takes it for stdin, stdout or stderr. The methods of the class make one at one go, so
    that no interrupt leaks it.
    """

    number: int  # read-only; -1 once it is closed or taken

    def __init__(self, number: int) -> None:
        """Take `number` over; it is copied above 2 where need be."""

    @classmethod
    def memfd(cls, name: str) -> OwnedFd:
        """A new, empty, sealable memfd (memfd_create(2))."""

    @classmethod
    def bell(cls) -> OwnedFd:
        """A new bell: what members of a commons wake each other's wardens with."""

    @classmethod
    def copied(cls, fd: int) -> OwnedFd: ...
    @classmethod
    def of_process(cls, pid: int) -> OwnedFd:
        """pidfd_open(2)."""

    @classmethod
    def fetched(cls, pidfd: int, fd: int) -> OwnedFd:
        """pidfd_getfd(2)."""

    @classmethod
    def received(cls, connection: int, nbytes: int) -> tuple[bytes, list[OwnedFd]]:
        """One packet of a socket, of 256 bytes at most, and the fds that came with it."""

    def take(self) -> int:
        """Give the ownership to the caller."""

    def close(self) -> None:
        """Also of an fd that a peer gave us: it may be a commons that we are a member of, whose lock must stay."""

def meet(fields: Fields, /) -> tuple[Mapping, Domain, OwnedFd, OwnedFd] | None:
    """Meet the exporter of a handle by pidfd_getfd: its table mapped, the membership in its commons, the table's fd,
    the exporter's pidfd. None, with nothing left behind, if anything is in the way or not as it has to be: whoever
    takes the steps one by one finds out what."""

def close_received(fd: int) -> None:
    """close(2) an fd that a peer gave us. It may be a commons that we are a member of, whose lock must stay."""

def dead(pidfds: Sequence[int]) -> list[int]:
    """The `pidfds` whose process has died. This is one poll(2) and does not wait."""

def lock(fd: int, at: int) -> bool:
    """Take a POSIX write lock on byte `at`, without waiting. False if another process holds it."""

def fds_linked_to(folder: str, first: str, second: str, /) -> list[int]:
    """The numbers in /proc/PID/fd, the `folder`, whose links begin with one of the two. OSError."""

def exchange(one: str | PathLike[str], other: str | PathLike[str], /) -> bool:
    """Have the two files change places, at one go; False if the file system cannot. OSError."""

def lock_holder(fd: int, at: int, count: int = 1, /) -> int | None:
    """pid of a process that holds byte `at`, or one of `count` from there on (0 if that pid cannot be seen from here),
    None if no other process does. F_GETLK.
    """

# --- atomics on shared words (addresses must be mapped and aligned; sequentially consistent) --------------------------
def load64(address: int) -> int: ...
def store64(address: int, value: int) -> None: ...
def futex_wait(address: int, expected: int, timeout: float | None = None, spin: float = 0.0) -> bool:
    """Wait until the 32-bit word differs from `expected` or somebody wakes it; False on time-out.

    First spins for at most `spin` seconds, but not on a machine with one CPU. Signals run their Python handlers (so
    `KeyboardInterrupt` works), and the wait goes on.
    """

def futex_wake(address: int, count: int = 2**31 - 1) -> int: ...

# --- memory -----------------------------------------------------------------------------------------------------------
def trim() -> int:
    """Give back all memory that `Mapping.keep` keeps; how many bytes that was."""

def kept_nbytes() -> int: ...
def copy(dst: int, src: int, nbytes: int) -> None:
    """memmove without the GIL."""

def fill(dst: int, pattern: bytes, nbytes: int) -> None:
    """Repeat `pattern` over [dst, dst + nbytes) without the GIL; nbytes is a multiple of len(pattern)."""

def mapped(address: int, nbytes: int) -> str:
    """How this process can reach all of these bytes: "rw", "r", or "" if not all of them are there."""

def ask(function: int, attribute: int, address: int, /) -> int | None:
    """What `int function(void *value, int attribute, uint64 address)` tells, zero-extended; None where it fails."""

def ask_all(function: int, attributes: tuple[int, ...], address: int, /) -> tuple[int, ...] | int:
    """The same of several attributes by `int function(unsigned count, int *attributes, void **values, uint64 address)`;
    the code where that fails.
    """

def name_handles(function: int, addresses: list[int], into: bytearray, /) -> int:
    """Calls `int function(handle *made, uint64 address)` with each address, until one fails; returns its code, or 0.
    `into` takes the 64 bytes of each.
    """

def open_handles(
    open: int, flags: int, ask: int, attribute: int, head: bytes, payloads: list[bytes], sizes: list[int],
    into: memoryview, /,
) -> int | None:  # fmt: skip
    """Calls `int open(uint64 *address, handle, unsigned flags)` with the handle of 64 bytes in each payload, by value,
    until one fails. Returns its code, or 0. Each payload has to begin with `head` and 8 bytes, which are its size; if
    one does not, nothing is opened, and the result is None. `into` has two numbers of 64 bits for each payload, which
    are written even if an interrupt is raised: the address (untouched if it was not opened), and the result of `int
    ask(void *value, int attribute, uint64 address)`, or the greatest uint64 if that fails.
    """

def query(function: int, handle: int, /) -> int:
    """Call a driver's function that asks for the state of `handle`. Returns its code."""

@final
class Recogniser:
    """Finds other libraries' allocations, and asks for their handles, as `ask_all` and `name_handles` with the
    functions `ask`, `ask_all` and `name`. It caches 8,192 of them, and asks only for the number of those.

    `attributes` are an allocation's number, which no other has, also not later, its start, its size and its device's
    ordinal, and then those that have to be as `wanted` says. The payload of an export is `payload`, with the size at
    `size_at`, and the handle of 64 bytes behind it. `make(place, start, nbytes, number, payload)` makes the adapter's
    `DriverMemory`. What it remembers is for `Leaves.next`.
    """

    def __init__(
        self,
        make: Callable[[Any, int, int, int, bytes], object],
        ask: int,
        ask_all: int,
        name: int,
        attributes: tuple[int, ...],
        wanted: tuple[int, ...],
        payload: bytes,
        size_at: int,
    ) -> None: ...
    def add(self, ordinal: int, info: object, scopes: Scopes, place: object, /) -> None:
        """Find memory on that device, too, which `info` describes; handles are asked for within a scope."""

    def find(
        self, device: Any, info: Any, backend: str, address: int, nbytes: int, known: bool,
        add: Callable[[Any, Any], Any], own: OwnTable | None, /,
    ) -> Any:  # fmt: skip
        """Return the `Allocation` that has these bytes, on the device that `info` describes. None: the adapter has to
        look. A new one of this device is made under the name (backend, (ordinal, start, nbytes, number)), with the
        template of its exports in `own` once one was made on that device, and remembered as what `add(name,
        allocation)` returns. `known`: ask first whether it is one that is remembered, as `Leaves.next` does.
        """

@final
class Mapping:
    """A shared mapping of an fd, which is unmapped when the object dies. It does not keep the fd."""

    def __init__(
        self, fd: int, nbytes: int, offset: int = 0, writable: bool = True, populate: bool = False
    ) -> None: ...
    @classmethod
    def imported(cls, fd: int, inode: int, nbytes: int, writable: bool, /) -> Mapping:
        """Map a peer's memfd. ValueError unless it cannot shrink, has at least `nbytes`, and is the file `inode` (0:
        any).
        """

    @classmethod
    def fetched(
        cls, pidfd: int, fd: int, inode: int, nbytes: int, writable: bool, address: int, generation: int, /
    ) -> Mapping:
        """`pidfd_getfd` and `imported` in one call. OSError(ESTALE) unless the word at `address` is `generation`
        afterwards.
        """

    def keep(self, fd: OwnedFd, owned: bool, /) -> int:
        """Give up the mapping and its fd. Both are kept if there has been no fork since and memory is not scarce: for
        `owned`, or for `kept` if the memory was never exported. Nothing may use the mapping any more. Returns the
        number under which it is kept; 0 if it was freed.
        """

    @classmethod
    def owned(cls, number: int, /) -> tuple[Mapping, OwnedFd] | None:
        """Return the mapping that was kept as `owned` under that number, with its content, and its fd. None if it was
        freed.
        """

    @classmethod
    def kept(cls, nbytes: int, /) -> tuple[Mapping, OwnedFd] | None:
        """A mapping of exactly `nbytes` that was kept, zeroed, and its fd."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

@final
class Reservation:
    """Address space (PROT_NONE, MAP_NORESERVE) in which fds are mapped at fixed places. It is released when the object
    dies.
    """

    def __init__(self, nbytes: int, address: int = 0) -> None:
        """If `address` is not 0, the reservation is there (MAP_FIXED_NOREPLACE) or fails with EEXIST."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def map(self, at: int, fd: int, offset: int, nbytes: int, access: int, /) -> None:
        """mmap(MAP_FIXED | MAP_SHARED) at base + `at`; `access` is 0 none, 1 read, 2 read and write. ValueError
        outside.
        """

    def unmap(self, at: int, nbytes: int, /) -> None:
        """Make the piece merely reserved again, by one mmap(PROT_NONE, MAP_FIXED)."""

    def protect(self, at: int, nbytes: int, access: int) -> None: ...

# --- handles and peers ------------------------------------------------------------------------------------------------
@final
class Fields:
    """The 256 bytes of a handle, by the names of docs/layout.md (`sharing.handle.FIELDS`). Nothing is checked."""

    def __init__(self, raw: bytes, /) -> None: ...
    def key(self, opener: int, /) -> bytes:
        """Return what tells imports apart: the exporter's cookie, the numbers of its object and of the opener, and the
        flags READ_ONLY and PICKLED. A pickle opens an import of its own, which may have to be exported from here later.
        """

    @property
    def names(self) -> bytes:
        """The bytes by which a handle names its device: `backend` and `device_uuid`."""

    @property
    def magic(self) -> bytes: ...
    @property
    def version(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def backend(self) -> bytes: ...
    @property
    def device_uuid(self) -> bytes: ...
    @property
    def boot_id(self) -> bytes: ...
    @property
    def pid_namespace(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def table_fd(self) -> int: ...
    @property
    def cookie(self) -> bytes: ...
    @property
    def generation(self) -> int: ...
    @property
    def entry(self) -> int: ...
    @property
    def reserved0(self) -> int: ...
    @property
    def nonce(self) -> bytes: ...
    @property
    def object(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def exposed_nbytes(self) -> int: ...
    @property
    def net_namespace(self) -> int: ...
    @property
    def reserved1(self) -> bytes: ...

@final
class Seal:
    """The user's key, under which handles and array handles are sealed."""

    def __init__(self, key: bytes) -> None: ...
    def hash(self, data: bytes, /) -> bytes:
        """BLAKE2b-256 of `data` under the key."""

    def read(self, raw: bytes, /) -> Handle | None:
        """Return the handle of these bytes; None unless they were sealed under the key, and this version knows all that
        they say. The boot is the caller's to check.
        """

    def moved(self, raw: bytes, handles: bytes, /) -> bytes:
        """Return the message of these bytes over other memory handles, as many as it has, sealed anew. ValueError
        unless it was sealed under the key.
        """

class HandleState:
    """The base of `sharing.handle.Handle`. If a pickle's bytes are no handle here, only `raw` and `unread` are set.
    Handles compare by their bytes.
    """

    @property
    def raw(self) -> bytes: ...
    @property
    def fields(self) -> Fields: ...
    @property
    def unread(self) -> Unread | None: ...
    @property
    def newest(self) -> Callable[[], Any] | None: ...
    def __bytes__(self) -> bytes: ...

def handle(raw: bytes, newest: Callable[[], Any] | None = None, /) -> Handle:
    """Make a handle of 256 bytes that have been verified. `newest`: see `sharing.handle.following`."""

def unread_handle(raw: bytes, why: Unread, /) -> Handle:
    """Make a handle of bytes that are none here. `why` raises the reason when it is called."""

def fields_of(handle: Handle, /) -> Fields:
    """Return `handle.fields`, in fewer steps."""

class PeerTable:
    """The base of `Peer`: its mapped table, which opens an export in one call. It does not keep the pidfd (-1: there is
    none).
    """

    def __new__(cls, mapping: Mapping, domain: Domain, pidfd: int) -> Self: ...
    def ended(self, fields: Fields, /) -> int | None:
        """None while the handle's entry is live; else why it ended, a REASON_… if the peer is honest. ValueError where
        there is no such entry in any table."""

    def stands(self, fields: Fields, /) -> bool:
        """Whether the entry is still that of the handle, which may be overdue."""

    def copy(self, fields: Fields, /) -> bytes | None:
        """A copy of the handle's entry, checked against the handle; None unless it is live and fits."""

    def open(
        self, fields: Fields, mapped: bool, /
    ) -> tuple[Mapping | None, Lease, int, int, bytes, list[OwnedFd], int, bool, int] | None:
        """Check a handle's entry, hold it, and fetch what it has: (a mapping of its memfd if it is one and `mapped`
        wants that, the hold, nbytes and exposed_nbytes of the whole object, payload, fds otherwise, offset, whether
        it is read-only, the number of its form).

        None, with nothing left behind, for a dead exporter, and for anything but a live entry that is not counted and
        whose fds can be fetched. Then the caller finds out elsewhere what is wrong.
        """

    def hold(self, fields: Fields, /) -> tuple[Lease, int] | None:
        """Check a handle's entry and hold it: (the hold, the entry's slot). None as in `open`."""

@final
class Imports:
    """What this process has open of others, by the cache's keys, and who opens the memory of a device. It holds weak
    references: it keeps nothing open.
    """

    peers: dict[bytes, Any]  # PeerTables, by cookie

    def get(self, key: Any, /) -> Any:
        """What is open under the key, or None."""

    def add(self, key: Any, made: Any, /) -> Any:
        """What is open under the key. If nothing is, it is `made` from now on."""

    def forget(self, key: Any, /) -> None:
        """What was open under the key has died. Something newer is not forgotten."""

    def objects(self) -> list[Any]:
        """All that is open."""

    def hold(self, fields: Fields, key: Any, /) -> tuple[Any, Lease] | None:
        """What is open already under the key, and a hold of it. None if nothing is, and as in `PeerTable.open`."""

    def open(self, handles: tuple[Handle, ...], opened: list[Any], /) -> list[tuple[Handle, Any, Any, Any]] | None:
        """Append the ranges of handles to `opened`, up to the first whose allocation is not open already, or whose open
        has to be counted.

        Return the rest, each with what `decide` was told: (handle, opener, device, context). None if it does not know
        that, or has not met the exporter.
        """

    def decide(self, handle: Handle, opener: Any, number: int, device: Any, context: Any, /) -> None:
        """Tell who opens handles of that device, if nobody asks for another one, and the opener's number."""

    def decided(self, handle: Handle, /) -> tuple[Any, Any, Any] | None:
        """What `decide` was told: (opener, device, context)."""

@final
class Template:
    """What all exports of one object have in common; made by `OwnTable.prepare`. It never changes."""

    nbytes: int

@final
class Exported:
    """One export of this process. `OwnTable.export` publishes it, once; until then it has no handle."""

    def __new__(
        cls, template: Template, source: Any, keep: Any = None, offset: int = 0, nbytes: int = 0,
        read_only: bool = False, implicit: bool = False, foreign: bool = False, slot: int = 0,
    ) -> Self:  # fmt: skip
        """`offset` and `nbytes` say which bytes of the object are exported; `slot` is that of an event."""
    source: Final[Any]  # an open in this very process returns it
    keep: Final[Any]  # kept alive with it: the array of another library
    handle: Final[Handle]  # None until it is published
    nbytes: Final[int]  # of the whole object
    generation: Final[int]
    deadline: Final[int]  # of the monotonic clock; 0 if it has none
    entry: Final[int]
    foreign: Final[bool]  # importers may use the memory even after the export has ended
    implicit: Final[bool]  # made by pickling
    live: Final[bool]
    outlives: bool  # made by pickling, and its object has died

class Exposure:
    """Which other processes may have memory of this process that was exported, and whether it may serve again.

    Exports of an allocation that has it as `exposure` tell it when they end. Any thread may call any method.
    """

    def free(self) -> bool | None:
        """Whether nobody else can have the memory any more. None: that will never be known, as after a fork."""

    def spoil(self) -> None:
        """Have `free` return None from now on: somebody may reach the memory for longer than leases tell."""
    prepared: Any  # these two can be set: what the exports of its allocation say, and its number, 0 before the first
    serial: int

@final
class OwnTable:
    """This process's own table, mapped writable, and its live exports, which it holds.

    `common` is a handle without its seal, with the fields that all handles of this process have in common. Any thread
    may call any method at any time.
    """

    def __init__(self, mapping: Mapping, common: bytes, domain: Domain) -> None: ...
    @overload
    def prepare(
        self, kind: int, flags: int, names: bytes, device: int, object: int, nbytes: int, exposed_nbytes: int,
        inode: int, within: int, fds: tuple[int, ...], payload: bytes, /,
    ) -> Template:  # fmt: skip
        """Return what the exports of one object have in common. `names` are the backend and uuid of the device, 32
        bytes, and `device` is its number in the table; `within` is where the object begins in what the `fds` stand for.

        With `function`, the fds are made on demand. For fd i the warden calls
        `int function(int *fd, uint64_t objects[i], int64_t a, uint64_t b)`, for which 0 is success, and closes the fd
        after sending it.
        """
    @overload
    def prepare(
        self, kind: int, flags: int, names: bytes, device: int, object: int, nbytes: int, exposed_nbytes: int,
        inode: int, within: int, fds: tuple[int, ...], payload: bytes, function: int, objects: Sequence[int], a: int,
        b: int, /,
    ) -> Template: ...  # fmt: skip
    def export(
        self, seal: Seal, exports: Sequence[Exported], opens: int | None, deadline: int, /
    ) -> list[Handle] | None:
        """Publish new exports, each with a handle of its own: all of them, or none. Returns None if the table is full.

        With `opens`, each can be opened that often. `deadline` is of the monotonic clock, 0 for none.
        """

    @overload
    def of_range(self, range: RangeBase, template: Template, read_only: bool, implicit: bool, /) -> Exported: ...
    @overload
    def of_range(self, range: RangeBase, template: None, read_only: bool, implicit: bool, /) -> Exported | None:
        """Make the export of a range of an allocation. Without a template, that of the allocation serves; None if it
        has none, or this process may not export it.
        """

    def find(self, fields: Fields, /) -> Exported | None:
        """Return the live export behind a handle."""

    def exports(self) -> list[Exported]:
        """Return all live exports, the oldest first."""

    def end(self, exported: Exported, reason: int, /) -> bool:
        """End an export; one that is not live stays as it is. Returns whether importers may still use its memory: then
        the table holds it until `release`, and its entry stays taken.
        """

    def release(self, exported: Exported, /) -> None:
        """Drop an ended export. Its entry can be taken again."""

    def set_deadline(self, exported: Exported, deadline: int, /) -> None:
        """Change the deadline of a live export."""

    def give_open(self, fields: Fields, until: int = ..., /) -> bool:
        """Allow one open more, and with `until` have the handle stay good until then. False if the export has ended."""

    @property
    def used(self) -> int:
        """How many entries have ever been taken: the first ones."""

    @property
    def live(self) -> int:
        """How many exports are live."""

    def new_object(self) -> int:
        """Return 1, 2, 3, …: no two threads get the same number."""

    def object_named(self, name: Hashable, /) -> int:
        """Return the number of another library's object: the same one for the name each time, unless 4,096 others were
        asked for since.
        """

@final
class End:
    """Releases a resource when its owner has died: calls `release(*arguments)` once, unless that is None.

    The owner alone holds it. The owner's own `__del__` would be too early: it runs while weak references to the owner
    still work, so that another thread could take the object out of a cache while it is being released.

    In a forked child, and after this process has left, nothing is called.
    """

    def __new__(cls, release: Callable[..., object] | None, /, *arguments: Any) -> Self: ...
    def __del__(self) -> None:
        """Release now what would be released later."""

class Resource:
    """Owns `driver` and releases it once, in the process that made it, when the last reference goes."""

    def __new__(cls, device: Any, driver: Any, release: Callable[..., object] | None, /, *arguments: Any) -> Self: ...
    device: Any  # all are read-only
    driver: Any
    forks: int  # how often this line of processes had forked when this was made
    @property
    def foreign_process(self) -> bool:
        """True in a child forked after this was made."""

    def on_death(
        self, forget: Callable[[Any], object], key: Any, keep: Callable[[End], object] | None = None, /
    ) -> None:
        """Have `forget(key)` called when this has died, before its driver resource is released. For a cache.

        With `keep`, the resource is not released then. Instead, `keep` is called with a new end that owns it.
        """

    reopens: tuple[Any, ...] | None
    """What `imported` takes before the end that `keep` gets, to rebuild this object; None if that saves nothing."""

@final
class Timeline(Resource):
    """This process's attachment to an event's slot: one per event and process, however often it is opened.

    The slot's object detaches when it dies. A queue that still has to signal it or to wait for it holds it.
    """

    def __new__(
        cls, device: Any, domain: Domain, slot: Slot, release: Callable[..., object] | None, /, *arguments: Any
    ) -> Self: ...
    driver: Domain
    slot: Slot  # read-only
    prepared: Template | None  # for exports by this process

class AllocationBase(Resource):
    """USM memory. `newest` is the handle by which an import was opened last, `earlier` has those before."""

    def __new__(
        cls, device: Any, driver: Any, end: End, kind: str, address: int, nbytes: int, host_accessible: bool,
        foreign: bool, source: object, serial: int, name: object, /
    ) -> Self: ...  # fmt: skip
    kind: Any  # read-only, as what follows
    address: int
    nbytes: int
    host_accessible: bool
    imported: bool
    foreign: bool
    source: Any
    name: Any
    earlier: dict[Any, Any]
    owned: bool  # an import that can be exported from here; this and the next four can be set
    exposure: Any  # None: the memory never serves again
    prepared: Any
    newest: Any
    known_serial: int  # 0 before the first export

    def opened_by(self, handle: Handle, /) -> bool:
        """Note the handle by which an import was opened, which is its `newest` one now. The one before is in `earlier`
        unless the new one does for that, too: it covers the same bytes, or is of the same pickle. Returns whether it is
        time to forget earlier ones that ended.
        """

class PagesBase(Resource):
    """Physical memory."""

    def __new__(cls, device: Any, driver: Any, end: End, nbytes: int, ipc_enabled: bool, imported: bool, /) -> Self: ...
    nbytes: int  # read-only, as the next two
    ipc_enabled: bool
    imported: bool
    known_serial: int  # 0 before the first export

def imported(
    device: Any, driver: Any, kind: str, address: int, nbytes: int, host_accessible: bool, owned: object, end: End,
    keepable: bool = False, /,
) -> Any:  # fmt: skip
    """Make the `Allocation` of memory that another process exported. `owned`: by which this process can export it, or
    None. `keepable`: its end is worth keeping for a moment.
    """

class RangeBase:
    """A piece of an allocation, and what keeps it open. Its fields are read-only. Ranges compare by identity."""

    def __new__(
        cls, allocation: Any, offset: int, nbytes: int, device: Any, context: Any, read_only: bool, handle: Any,
        lease: Any, /
    ) -> Self: ...  # fmt: skip
    allocation: Any
    offset: int
    nbytes: int
    device: Any
    context: Any
    read_only: bool
    handle: Any
    lease: Any
    def replace(
        self, *, allocation: Any = ..., offset: int = ..., nbytes: int = ..., device: Any = ..., context: Any = ...,
        read_only: bool = ..., handle: Any = ..., lease: Any = ...,
    ) -> Self:  # fmt: skip
        """Return a range that differs from this one in these fields."""

    @classmethod
    def opened(cls, handle: Handle, allocation: Any, device: Any, context: Any, lease: Any, /) -> Self | None:
        """Return the range that an opened handle names. None if it does not lie in the allocation."""

def flatten(tree: Any, most: int, scalar: type | None, /) -> Any:
    """The arrays of a tree, and the tree in terms of JSON; NotImplemented for what only Python describes or refuses.
    `most`: bytes of the message. `scalar`: the type of NumPy's scalars, None if NumPy is not loaded.
    """

def unflatten(described: Any, arrays: Sequence[Any], /) -> Any:
    """The tree with these arrays; NotImplemented for what only Python makes or refuses."""

class MessageState:
    """The base of `objects.array_handle.ArrayHandle`: the handle of an array, or of a tree of arrays. Of the bytes of a
    pickle that are no message here, only `raw` and `unread` are set.

    If an object dies that owns its exports, `_abandoned` is called as `__del__` would be.
    """

    @property
    def raw(self) -> bytes: ...
    @property
    def text(self) -> bytes:
        """The dtypes and the tree: see `objects.message`."""
    @property
    def copied(self) -> int:
        """Bytes that `share` copied."""
    @property
    def count(self) -> int:
        """How many arrays there are."""
    @property
    def memory(self) -> tuple[Handle, ...]:
        """The handles of the memory that the arrays lie in."""
    @property
    def events(self) -> tuple[tuple[Handle, int], ...]:
        """The handles of the events that order the content, and the points at which it is there."""
    @property
    def closed(self) -> bool: ...
    @property
    def unread(self) -> Unread | None: ...
    @property
    def newest(self) -> Callable[[], Any] | None: ...
    def __bytes__(self) -> bytes: ...
    def good(self, itemsizes: tuple[int, ...], /) -> bool:
        """Whether all arrays can be and lie in their memory, if the dtypes have these sizes."""

    def elements(self) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...], int, int]]:
        """For each array the index of its memory, that of its event (-1: none), shape, strides, the dtype's index, and
        where the first element is in the memory's range.
        """

    def marks(self) -> set[tuple[int, int]]:
        """The indices of memory and event of the arrays that have an event."""

    def arrays(
        self, ranges: list[Any], dtypes: tuple[Any, ...], orders: dict[tuple[int, int], Any], /
    ) -> list[SharedArray]:
        """Make the arrays, once `good` has been asked. `ranges`: of each memory; `orders`: what readers wait for, by
        the indices of memory and event.
        """

    def tensors(
        self, exchange: object, places: list[tuple[object, int, tuple[int, int]]],
        dtypes: tuple[tuple[tuple[int, int, int], int], ...], /,
    ) -> list[Any] | None:  # fmt: skip
        """Make tensors by a DLPack exchange API. `places`: for each memory its owner, its address and DLPack's device;
        `dtypes`: DLPack's type and the item size. None if the library has none for one of the arrays.
        """

    def own(self) -> None:
        """Own the exports from now on, in this process."""

    def end(self) -> bool:
        """Close it; returns whether it owned its exports."""

def read_message(seal: Seal, raw: bytes, boot_id: bytes, /) -> ArrayHandle | None:
    """Verify a message; None unless it was sealed under the key and is of that boot. What it says of its arrays is
    checked by `good`.
    """

def unread_message(raw: bytes, why: Unread, /) -> ArrayHandle: ...
def following_message(message: ArrayHandle, newest: Callable[[], Any], /) -> ArrayHandle: ...

KINDS_MOST: Final[int]

@final
class Kinds:
    """What `Leaves.settle` and `Leaves.produce` have said of kinds of arrays, for later calls of `share`."""

    def clear(self) -> None: ...

class Leaves:
    """The base of `Placing`: the arrays of one `share`, until they are sealed as a message.

    It looks at arrays of ours, and at those whose library has DLPack's exchange API. Arrays of one kind (type, device
    and type of element) are described alike. Python describes and `put`s the others; its kinds have numbers from
    KINDS_MOST on.
    """

    def __new__(cls, arrays: list[Any], read_only: bool, known: Kinds = ..., /) -> Self:
        """`read_only`: all of it becomes so. `known`: kinds that need not be asked for."""

    arrays: tuple[Any, ...]
    dtypes: list[Any]  # by their numbers in the message
    read_only: bool
    copied: int  # bytes that were copied, as the message says

    def view(self, ordered: bool = True, /) -> list[tuple[int, Any, Any, tuple[int, int, int, int, int] | None]]:
        """Look at the arrays. Returns, for each kind that is not known, its number, an array of it, and the device. For
        another library's kind, it returns None instead of the device, and DLPack's device type and number, and the
        code, bits and lanes of an element. `ordered`: a kind is known only if the stream is that produces its arrays.
        """

    def stream(self, kind: int, /) -> int | None:
        """The number of the stream that the kind's library works on now."""

    def settle(self, kind: int, dtype: Any, device: Any, context: Any, /) -> None:
        """Tell the dtype and the device of the arrays of another library's kind."""

    def finds(self, kind: int, finder: Recogniser, info: Any, /) -> None:
        """Tell who finds the memory of the kind's arrays, and calls their device `info`."""

    def produce(self, kind: int, work: Resource | None, number: int | None, lasting: bool, /) -> None:
        """Tell which queue is over the stream that produces the kind's arrays, and what `stream` said then. `lasting`:
        the queue is the same whenever `stream` says so.
        """

    def producers(self) -> dict[int, Any] | None:
        """What produces the arrays, by kind; None if nothing does. Kinds with the same queue have the same object."""

    def next(self) -> int | None:
        """Place the arrays in allocations that are known, here or to the kind's finder. Returns the index of the next
        array that is in none; None if there is none.
        """

    def where(self) -> tuple[int, int, int, Any, Any, Recogniser | None, Any, int] | None:
        """Of the array that `next` returned the kind; the address and bytes of the first array that it lies end to end
        with, which may be itself; its device and context; who finds the kind's memory, and what that calls the device;
        and how many bytes all these arrays take up. None if the kind is not settled.
        """

    def learn(self, allocation: Any, context: Any, /) -> None:
        """Arrays may lie in that allocation."""

    def skip(self) -> None:
        """The array that `next` returned is `put` later."""

    def put(
        self, index: int, range: Any, first: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any,
        kind: int, /
    ) -> None:  # fmt: skip
        """The array covers that range of an allocation, and its first element is `first` bytes into it."""

    def groups(self, events: dict[int, int] = {}, event: int = -1, whole: bool = False, /) -> list[Any]:
        """Return a range for each allocation, and access to it, in which arrays lie: the bytes that they span, or all
        of it. `events`: by the numbers of kinds, the index of the event that orders the arrays (-1: none); `event`: of
        all other kinds.
        """

    def seal(
        self, seal: Seal, memory: tuple[Handle, ...], events: tuple[tuple[Handle, int], ...], text: bytes, /
    ) -> ArrayHandle | None:
        """The message, after `groups`; None if it would be too large."""

# --- what is read from peers ------------------------------------------------------------------------------------------
def check_memfd(fd: int, nbytes: int, inode: int = 0, seals: int = 0, exact: bool = False) -> None:
    """Check that it is safe to map `nbytes` of a peer's fd. ValueError unless it is a memfd of ordinary pages that
    cannot shrink, also has `seals`, has at least `nbytes` (`exact`: exactly as many), and is the file `inode` (0: any).
    """

def request(op: int, wanted: list[tuple[Fields, int]], /) -> bytes:
    """A request to the socket of the handles' exporter: OP_…, for the fds of each entry from that number on. At most
    FDS_AT_ONCE entries.
    """

def read_reply(packet: bytes, asked: int, fds: int, /) -> list[tuple[int, int, int]]:
    """(STATUS_…, how many fds are there, how many the entry has in all) for the first of the `asked` entries, from a
    reply that came with `fds` fds. OSError(EMFILE) if fds were lost on the way; ValueError if the reply makes no sense.
    """

# --- buffers and DLPack -----------------------------------------------------------------------------------------------
@final
class Span:
    """A buffer (format "B" by default) over memory that `owner` keeps alive. Every view of it holds the span, and so
    the owner.

    With `shape`, `strides` (bytes) and `format`, the buffer has that shape. PEP 3118's flags are honoured: BufferError
    if a consumer asks for contiguous or writable memory and this is not.
    """

    def __init__(
        self,
        address: int,
        nbytes: int,
        readonly: bool,
        owner: object,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        format: str = "B",
        itemsize: int = 1,
    ) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def owner(self) -> object: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class BufferBase:
    """Base of classes that export a buffer: `memoryview(self)` becomes a view of `self._span()`, a `Span`. The view
    keeps the span, not this object. Exceptions of `_span` are passed on. The class has a weak-reference list.
    """

    held: Any  # the whole state; None once the object is closed
    pickled: Any  # what pickling it has exported
    pinned: Any  # what the consumer of an array interface needs as long as this lives
    forks: int
    def _span(self) -> Span: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class ArrayState(BufferBase):
    """The base of `objects.array.SharedArray`."""

    @property
    def lengths(self) -> tuple[int, ...]: ...
    @property
    def steps(self) -> tuple[int, ...]: ...
    @property
    def kind(self) -> Any:
        """The dtype; None of what no pickle could open."""
    @property
    def first(self) -> int:
        """Where the first element is in the range."""
    @property
    def message(self) -> ArrayHandle | None:
        """By which it was attached."""
    order: Any  # what its readers have to wait for

def array(
    held: Any, forks: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, offset: int, message: Any,
    order: Any, /,
) -> SharedArray: ...  # fmt: skip
def dlpack_view(
    array: Any, api: object, /
) -> tuple[int, tuple[int, int], tuple[int, int, int], tuple[int, ...], tuple[int, ...] | None] | None:
    """What an array says of itself by DLPack's C exchange API, the capsule that its type has: address, device, dtype,
    shape, and strides in elements (None: C order). Nothing is asked of its streams. None where the API has no such
    view, or refuses the array.
    """

def dlpack_capsule(
    owner: object,
    address: int,
    device: tuple[int, int],
    dtype: tuple[int, int, int],
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    read_only: bool,
    versioned: bool,
    copied: bool = False,
) -> Any:
    """A DLPack capsule ("dltensor_versioned" 1.x, or "dltensor") that holds `owner` until its consumer deletes it (from
    any thread).

    `strides` are in elements, None for C order; `dtype` is (code, bits, lanes). `copied` is DLPack's flag of that name,
    which only a versioned capsule has. Unversioned and read-only: BufferError.
    """

@final
class DLTensor:
    """The content of another library's capsule. It takes over the capsule (renames it "used_…"), and calls the
    capsule's deleter when it dies.
    """

    def __init__(self, capsule: Any) -> None:
        """ValueError for what is not an unused DLPack capsule, BufferError for a major version other than 1."""

    address: int
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    read_only: bool

# --- membership, holders, event slots ---------------------------------------------------------------------------------
@final
class Domain:
    """This process's membership in one commons; one per commons and process.

    It takes over the two fds (close-on-exec from then on): `leave` closes the commons (then `fd` is -1), and its death
    closes the bell. If the constructor raises, they stay the caller's. In a forked child the commons' fd is closed at
    once.
    """

    def __init__(self, fd: int, bell: int, cookie: bytes, owner: bool) -> None:
        """Map the commons (checked: seals, size, magic, cookie; ValueError says what is wrong), claim a member index
        (0 for the owner, which writes the header; else the first free one, reaping dead ones on the way). A
        member never closes another fd of this file while it lives. OSError(ENOSPC) when all 1024 are taken."""

    @property
    def fd(self) -> int: ...
    @property
    def bell(self) -> int: ...
    @property
    def member(self) -> int: ...
    @property
    def address(self) -> int: ...
    def leave(self) -> None:
        """Clean exit: docs/events-protocol.md. Idempotent. In a forked child: only unmaps and closes."""

    def members(self) -> list[tuple[int, int, int, bool]]:
        """(index, pid as seen from here or 0, attach time in ns since the epoch, alive) of every attached member."""

    def reap(self) -> int:
        """Reap the dead members, each by one step of 4,096 slots and entries; returns how many sweeps that ended."""

    # who holds an entry of the owner's table open
    def leave_if_idle(self) -> bool:
        """`leave`, if this process holds no entry and is attached to no slot here; whether it has left. No thread comes
        to hold anything in between."""

    def stands(self) -> bool:
        """Whether this process still is a member: it has not left or forked, and nothing in it has closed our fds."""

    def use(self, entry: int, /) -> Lease:
        """What marks this process as a user of the entry until it dies: device work of before a close may go on."""

    def mark(self, entry: int, /) -> None:
        """Declare that this process, or another one, may reach the memory for longer than a hold of the entry."""

    def holders(self, entry: int) -> list[int]:
        """Indices of the other living members that hold `entry`; dead ones are reaped first."""

    def set_opens(self, entry: int, count: int) -> None:
        """Begin with that many opens, and not renewed."""

    def take_open(self, entry: int) -> bool:
        """Count one open of a counted or pickled export (never below zero); False when they are used up."""

    def give_open(self, entry: int) -> None:
        """One open more: undo one `take_open`, or count one pickle."""

    def opens_left(self, entry: int) -> int: ...
    def renew(self, entry: int, until: int) -> None:
        """One open more of a pickled export, which is good until then (CLOCK_MONOTONIC nanoseconds), at least."""

    def renewed(self, entry: int) -> int: ...
    def own(self, entry: int) -> None:
        """Record, while this process holds the entry, that it hands out the memory of this export from now on."""

    def owned(self, entry: int) -> bool:
        """Whether any process hands out the memory of this export itself: the table's owner never uses it again."""

    # slots, owner only
    def new_slot(self) -> int:
        """The index of a zeroed slot to which no living process is attached. OSError(ENOSPC) if all are in use."""

    def release_slot(self, index: int) -> None:
        """Release a slot. It may be used again once no living process is attached to it."""

@final
class Lease:
    """A hold on an entry of `domain` that drops when it dies; keeps `peer`, whatever that is.

    This process counts its holds: the first one of an entry sets the shared bit, the last one clears it.
    """

    def __init__(self, domain: Domain, entry: int, peer: Any, /) -> None: ...
    @property
    def peer(self) -> Any: ...

PENDING: Final = 0
DONE: Final = 1
LOST: Final = 2

@final
class Slot:
    """An attachment of this process to one event; it ends when the object dies or by `detach`.

    `signals` says what it is for: None may signal, True will, False only waits.
    """

    def __init__(self, domain: Domain, index: int, signals: bool | None = None) -> None: ...
    @property
    def domain(self) -> Domain: ...
    @property
    def index(self) -> int: ...
    @property
    def address(self) -> int:
        """The address of the slot; its first word is the value, for devices."""

    @property
    def engine(self) -> int:
        """What the engine's functions for other libraries (src/native/engine/outside.c) take."""

    @property
    def value(self) -> int: ...
    @property
    def pending(self) -> int: ...
    def state(self, point: int) -> int:
        """PENDING, DONE or LOST now. It notices no deaths by itself."""

    def signal(self) -> int:
        """Host signal. ValueError: another signaller's point is pending."""

    def submit(self, queue: int, device: bool = False) -> tuple[int, int]:
        """Submit a point for queue number `queue` (process-wide, not 0): (point, point to wait for first or 0).

        ValueError: too many signallers, or too many points outstanding. `device` sets the sticky flag."""

    def complete(self, point: int) -> None: ...
    def fail(self, cause: int) -> None:
        """Lose everything outstanding that this process owes, if anything (cause 2 or 3 of the protocol)."""

    def lose(self, point: int, cause: int) -> bool:
        """Lose a point of this process, which no device stores, and all behind it; False while an earlier one is
        outstanding.
        """

    def owes(self) -> bool:
        """Whether this process owes an outstanding point."""

    def owes_next(self) -> bool:
        """Whether the lowest outstanding point is this process's to complete."""

    def wait(self, point: int, timeout: float | None = None, spin: float = 50e-6) -> int:
        """Wait until `point` is done or lost: DONE, LOST, or PENDING on time-out. Deaths are noticed, also for future
        points.
        """

    def pickled(self, until: int) -> None:
        """A pickle was made, by which whoever opens the event may signal; good until then, in ns of CLOCK_MONOTONIC."""

    def taken(self) -> None:
        """A pickle was opened. Comes after the opener's own Slot that may signal was made."""

    def blame(self) -> tuple[int, int]:
        """(cause, pid) of the last loss; (0, 0) if none."""

    def attached(self) -> list[int]:
        """Member indices attached, dead ones included."""

    def notify(self, point: int, token: int) -> bool:
        """Have `token` (64 bits) reported by `due()` once `point` is done or lost.

        True when it already is (then nothing is registered). Tokens of a slot that is detached become due at once."""

    def notify_recovery(self, token: int) -> bool:
        """As `notify`, once a signal that nobody has submitted yet is not lost."""

    def cancel(self, token: int) -> None: ...
    def guard(self, point: int) -> None:
        """A device waits for `point` here: watch the members, so that a loss releases it, until it is done or lost.

        ValueError: more than 2**20 - 1 points ahead. A future point that is lost is submitted and lost at once, see
        the protocol."""

    def released(self, point: int) -> bool:
        """A guard for `point` has seen its loss; True once for each. Also after a later signal has healed the loss."""

    def watch(self) -> None:
        """Have the deaths of all attached members noticed, for callers that poll `state`."""

    def detach(self) -> None:
        """Detach from the event. Waits of other threads end with ValueError, tokens become due, and guards are dropped;
        what is owed stays owed. Idempotent.
        """

# --- scopes -----------------------------------------------------------------------------------------------------------
@final
class Scopes:
    """`with scopes():` makes calls of a driver around others, which undo each other, by the functions' addresses.

    `int exchange(int *mode)` exchanges this thread's capture mode for `mode`, `int push(context)` makes a context
    current, and `int pop(context *)` takes it back; 0 stands for no function. Where one fails nothing is left, and what
    `failed(step, code)` returns is raised: step 0 is the exchange, 1 the push.
    """

    def __init__(
        self,
        failed: Callable[[int, int], Exception],
        exchange: tuple[int, int] = (0, 0),
        push: tuple[int, int] = (0, 0),
        pop: int = 0,
    ) -> None: ...
    def __call__(self) -> Scope: ...

@final
class Scope:
    def __enter__(self) -> None: ...
    def __exit__(self, *_error: object) -> None: ...

# --- stream queues ----------------------------------------------------------------------------------------------------
CAPTURED: Final = 1 << 32
"""A code of `StreamQueue`: somebody captures the adopted queue, so nothing can be queued."""
NOT_HELD: Final = 2 << 32
"""A code of `StreamQueue`: the device cannot wait for this point now, and an adopted queue holds nothing."""
SYSTEM: Final = 3 << 32
"""Codes of `StreamQueue` from here on are this and an errno: the relay or the warden could not do what it should."""

Argument = (
    int
    | Literal["queue", "address", "point", "point_low", "function", "data", "out", "made", "status_out"]
    | Literal["to", "from", "nbytes", "value", "value_at", "times"]
    | tuple[Literal["int_at"], int]
)
Step = tuple[int, tuple[Argument, ...]] | tuple[int, tuple[Argument, ...], bool]
Recipe = Step | tuple[Step, ...]

@final
class QueueCalls:
    """How a driver's functions are called, for all queues of a vendor. Every function returns an int, 0 for success.

    A step is `(address of the function, (argument, ...))`, with at most 10 arguments that are integers or pointers. An
    argument is a number, or the name of what is filled in: "queue" (the handle), "address" (of the event's word on the
    device), "point", "point_low" (its lower 32 bits), "function" and "data" (the host function and its argument), "out"
    (the address of a temporary of 64 bits), "made" (what a step before has put there), "status_out" (the address of an
    int). A recipe is a step, or a tuple of at most 4. After a step that fails the others are left out, but for those
    that end with True, which clean the temporary up if there is one; the recipe's code is that of the first failure.

    `host` has the queue call "function". Its data is parameter 0: `void f(void *data)`, or with `host_data` 2
    parameter 2: `void f(event, int status, void *data)`, where a negative status loses the point. `store` writes
    "point" to "address", `wait` waits until the word there is at least "point"; a driver without them completes points
    by host functions, and its queues hold what waits. `captured` says whether an adopted queue is being captured.

    `relay` prepares a relay thread each time before it makes calls of a queue (below). `("int_at", number)` passes the
    address of an int that holds that number, one in a step. What the recipe sets stays set.

    `budget`: how many queues of ordering "shared" may wait in the device at a time for points that may never come, all
    queues with these calls counted.

    `copy` and `fills`, each one step, are for commands that need no Python (`StreamQueue.own`): "to", "from" and
    "nbytes"; the fills, for patterns of 1, 2 and 4 bytes, write "times" patterns "to" an address: "value", or what
    lies at "value_at", a byte that stays. `works` says whether there are a copy and a fill with bytes.

    `wait_bits` 32: the device compares only the lower half of the word, so the queue holds what cannot be told by
    that. `store_bits` 32: the device stores only the lower half, so host functions store the upper one."""

    def __init__(
        self,
        host: Recipe,
        store: Recipe | None = None,
        wait: Recipe | None = None,
        captured: Recipe | None = None,
        *,
        wait_bits: int = 64,
        store_bits: int = 64,
        host_data: int = 0,
        relay: Recipe | None = None,
        budget: int = 0,
        copy: Step | None = None,
        fills: tuple[Step | None, ...] = (),
    ) -> None: ...
    @property
    def works(self) -> bool: ...

@final
class StreamQueue:
    """A device's in-order queue, by functions of its driver that are called by address, without the GIL, one at a time
    and in the order in which points are submitted. Any of them may block.

    `ordering` says which waits the device does. "device": all of them. "shared", where queues share hardware and a wait
    blocks other queues: those for certain points, which a queue of this process has handed to the driver behind nothing
    that may never come; and any, while fewer than `budget` queues, or this one already, wait so. "held": none. What the
    device does not wait for the queue holds: that wait and every later operation are kept here. A relay thread hands
    them to the driver when the point is done or lost. Points are submitted at once all the same. What is signalled
    behind a wait that is lost never reaches the driver: it is lost, with the same cause.

    `adopted`: another library also uses the queue. Then it holds nothing.

    A code is 0, the driver's error, or one of the constants above. When the driver refuses a held operation, the queue
    has failed: what was held behind it is dropped, its points are lost (cause 2) once earlier points of their events
    are settled, and from then on `signal` and `wait` return the failure's code. Points that the driver has may still
    complete; call `Slot.fail` if the code says that they cannot. In a forked child, every method raises ValueError.
    """

    def __init__(
        self,
        number: int,
        handle: int,
        calls: QueueCalls,
        ordering: Literal["device", "shared", "held"] = "device",
        adopted: bool = False,
    ) -> None: ...
    def check(self) -> int:
        """CAPTURED while the adopted queue is being captured."""

    def wait(self, slot: Slot, address: int, point: int) -> int:
        """Later work starts once the point is done or lost. If it is already, nothing is queued.

        If the device waits, this calls `Slot.guard` and raises its ValueError. When the point is lost, what this queue
        signals between now and then is lost before the device is released, and so is what it signals later, until
        `told`. `Slot.released` also tells, once, of a held wait that is lost, and of one that comes after its loss.
        """

    def lost(self, slot: Slot) -> None:
        """A wait for a point that was lost before: what is signalled from now on is lost, with the cause of that
        slot's newest loss, until `told`. An adopted queue ignores it, as nobody there need ask for losses.
        """

    def told(self, place: int) -> None:
        """The user knows of the waits up to that place that were lost."""

    def signal(self, slot: Slot, address: int) -> tuple[int, int, int]:
        """Does `check`, then `Slot.submit` for this queue's number as a device, and queues the `store` of the point, or
        a `host` function that completes it if a late store could do harm: (point, after, code).

        If the point is 0, the check refused, and nothing was submitted. If `after` is not 0, that point has to come
        first: wait for it, then call `finish`. A queue that holds work does that by itself, and `after` is 0.
        ValueError as in `Slot.submit`.
        """

    def finish(self, slot: Slot, point: int) -> int:
        """Queue the `host` function that completes a point with `after`. It holds the slot's memory until it ran."""

    def submit(self, calls: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        """Other work, and marks behind it: calls `(address of the function, argument, ...)`, done in order up to the
        first that fails: (place in the queue, 0), or (which call failed, code). Held while anything is held. What the
        arguments point to must stay until the driver has done the call (`handed`), or longer, as the driver says.

        This still works when the queue has failed, so that a mark can tell when earlier work has finished.
        """

    def own(self, slot: Slot, address: int) -> None:
        """Native code outside this module may queue commands by `engine` from now on. Each signals a point of this
        slot, which nobody else signals.
        """

    @property
    def spent(self) -> bool:
        """There is no such slot, or the queue has met a loss since, which a later point of it would heal."""

    @property
    def engine(self) -> int:
        """The address of this queue in native code."""

    @property
    def place(self) -> int:
        """That of the newest operation."""

    def unsure(self, more: bool) -> None:
        """What comes later waits for something that may never come and that is no point: until the same with False,
        this queue counts in the `budget`, and what it signals is not certain.
        """

    @property
    def handed(self) -> int:
        """Operations up to this place have reached the driver, or were dropped (`failure`). A mark says nothing before
        the driver has it.
        """

    @property
    def held(self) -> int:
        """How many operations are held."""

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until nothing is held; False on time-out. Signals run their Python handlers."""

    def failure(self) -> tuple[int, int] | None:
        """The place of the held operation that the driver refused, and its code. That operation may have been done in
        part; those behind it were not done.
        """

    def late(self, slot: Slot) -> bool:
        """Whether points were lost here whose stores this queue's driver still has. Until `landed`, or until the slot
        is detached, the warden mends what these stores do to the value.
        """

    def landed(self, slot: Slot) -> bool: ...

# Native threads that never take the GIL and call drivers: they hand over what queues have held. The first starts when a
# queue first holds something, others while drivers block one. A fork leaves the child without any.
def library_loads() -> int:
    """How many libraries this process has loaded so far."""

def relay(calls: Sequence[tuple[int, ...]]) -> None:
    """Have a relay thread make these calls (as in `StreamQueue.submit`): releases that may block. Ignores failures."""

def close_relay(timeout: float | None = 1.0) -> bool:
    """Stop the relay's threads; what is held stays held until a thread starts again. False: a driver still blocks a
    thread at the time-out; the thread does nothing more once the driver returns. Call it at the exit, before memory
    that held calls use is freed. In a sub-interpreter it does nothing.
    """

# --- the warden
# ----------------------------------------------------------------------------------------------------------------
# One native thread per process, all signals blocked, never takes the GIL. Serves fds, watches pidfds, reaps the dead,
# and reports
# due tokens. Starts at `serve`, or at the first wait, notify or guard that must sleep; a fork leaves the child without
# one (mutexes
# are taken around the fork; the child's copy of the listening socket, epoll and notification fd is closed) until it
# starts its own.
def serve(table_address: int, table_fd: int, domain: Domain, file: bytes | None = None) -> None:
    """Listen on the abstract socket of docs/layout.md for this process's table, and at `file`, where that can be.

    One table of a process at a time; again for the same one changes nothing."""

DUPLICATE: Final[int]
"""The address of an `OnDemand` function that duplicates descriptors of this process: its objects are their numbers."""

def notification_fd() -> int:
    """An eventfd of this process, readable while `due()` has something; for event loops."""

def due() -> list[int]:
    """Tokens whose points are done or lost, each once; clears the notification."""

def close_warden() -> None:
    """Stop the thread and close its fds, including the listening socket (at interpreter exit). Idempotent.

    Whatever needs the thread later starts it again; `notification_fd` stays open.
    """

CREW_MEMBERS: int
CREW_JOIN: int
CREW_LIFE: int

class Crew:
    """This process among those that share one lock (kind 1), atomic (2) or channel (3): docs/channels-protocol.md.

    `fd`: of its file, which this takes over. `memory`: the control words. `fresh`: nobody has used them before.
    """

    def __init__(self, fd: OwnedFd, memory: memoryview, kind: int, fresh: bool, initial: int = 0) -> None: ...
    def close(self) -> None:
        """Have its members of this process die. Idempotent."""

    def pid(self, member: int) -> int:
        """Of a member: 0 if that cannot be seen from here, -1 if nobody is that member."""

class LockMember:
    """One member of a lock's crew; whoever makes one holds the join byte. Or what stands for one that could not be
    opened: each use raises `crew`, an exception. `held` and `died` are what it returns when the lock is acquired.
    """

    def __new__(cls, crew: Crew | Exception, label: str = "", held: object = None, died: object = None, /) -> Self: ...
    @property
    def member(self) -> int: ...
    @property
    def owner(self) -> int:
        """1 + the member that holds it, or 0."""

    def take(self, timeout: float | None, /) -> Any:
        """`held`, `died`, or None if the time is over."""

    def release(self) -> None:
        """Release the lock.

        Raises:
            InvalidArgumentError: This thread does not hold it, or the object is closed.

        Examples:
            >>> lock = xs.Lock()
            >>> lock.acquire().owner_died
            False
            >>> lock.release()
            >>> lock.close()
        """

    def leave(self) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *error: object) -> None: ...

class AtomicMember:
    """One member of an atomic's crew, likewise."""

    def __new__(cls, crew: Crew | Exception, label: str = "", /) -> Self: ...
    @property
    def member(self) -> int: ...
    def add(self, n: int, /) -> int:
        """Add to the number.

        Args:
            n: What to add.

        Returns:
            The number before.

        Raises:
            InvalidArgumentError: `n` has more than 64 bits, or the object is closed.

        Examples:
            >>> with xs.Atomic(5) as number:
            ...     number.add(-2), number.load()
            (5, 3)
        """

    def load(self) -> int:
        """Return the number.

        Returns:
            What the last change of any process left.

        Raises:
            InvalidArgumentError: The object is closed.

        Examples:
            >>> with xs.Atomic(5) as number:
            ...     number.load()
            5
        """

    def store(self, value: int, /) -> None:
        """Replace the number.

        Args:
            value: The new number.

        Raises:
            InvalidArgumentError: `value` has more than 64 bits, or the object is closed.

        Examples:
            >>> with xs.Atomic(5) as number:
            ...     number.store(7)
            ...     number.load()
            7
        """

    def swap(self, old: int, value: int, /) -> bool: ...
    def wait_for(self, value: int, timeout: float | None, /) -> bool:
        """Wait until the value differs. False if the time is over."""

    def leave(self) -> None: ...

CHANNEL_GOT: int
CHANNEL_WAIT: int
CHANNEL_OVER: int
CHANNEL_LOST: int
CHANNEL_NO_ROOM: int
CHANNEL_TWICE: int
CHANNEL_NO_WRITER: int
CHANNEL_SAID_END: int
CHANNEL_MOVED: int
CHANNEL_SPARE: int
CHANNEL_TEXT: int

def channel_nbytes(geometry: tuple[int, ...], /) -> int:
    """Of the control words; 0: no channel can be so. The geometry is nbytes of a frame, slots, slots for dead letters,
    writers, history, redeliver, on_full, bytes of metadata, bytes of text, and 1 where devices work on frames.
    """

def channel_begin(crew: Crew, geometry: tuple[int, ...], text: bytes, /) -> None:
    """Begin a channel in fresh words."""

def channel_geometry(crew: Crew, /) -> tuple[tuple[int, ...], bytes]:
    """What a channel is that somebody else began. ValueError: its words do not fit."""

def channel_move(crew: Crew, /) -> None:
    """The slots of a channel have ended with their maker: send its readers to the next channel of that name."""

def channel_survey(crew: Crew, /) -> tuple[list[tuple[Any, ...]], int]:
    """For people: (member, pid, role, cursor, missed, received, held, label) of each, and the seq of the next frame."""

class ChannelEnd:
    """One member of a channel's crew; whoever makes one holds the join byte. OSError (EBUSY): no room for a writer.

    `refuse(end, outcome, wanted, timeout)` raises what an outcome means, `encode(end, meta)` returns the bytes that go
    with a frame, and `signal(end, order)` the point that work on a frame signals when it is done (0: there is none).
    """

    lost: int
    """What is added to the `missed` of its frames."""

    def __new__(
        cls,
        crew: Crew,
        label: str,
        mode: int,
        oldest: bool,
        writer: bool,
        reconnect: bool,
        loan: type[LoanBase],
        frame: type[FrameBase],
        refuse: Callable[[Any, int, str, float | None], NoReturn],
        encode: Callable[[Any, Any], bytes],
        signal: Callable[[Any, Any], int],
        /,
    ) -> Self: ...
    @property
    def member(self) -> int: ...
    @property
    def lost_pid(self) -> int: ...
    @property
    def arrays(self) -> list[Any] | None: ...
    def use_arrays(self, arrays: list[Any], buffers: bool, /) -> None:
        """Give out views of these NumPy arrays, one over each slot; `buffers`: as buffers, too. Set once."""

    def loan(self, timeout: float | None, /) -> Any:
        """A new loan, without a slot as yet."""

    def receive(self, timeout: float | None, /) -> Any:
        """A frame."""

    def peek(self) -> int:
        """What `receive` would come to now. The crew's file tells of the next change."""

    def failed(self) -> Any: ...
    def finish(self) -> int: ...
    def write(self) -> int: ...
    def reads(self, slot: int, /) -> list[tuple[int, int]]:
        """The points of devices after which the slot may be written: (member, point)."""

    def since(self, member: int, /) -> int:
        """When a member joined; 0: nobody has."""

    def unread(self) -> int:
        """Of a channel that has moved: the frames that this reader missed, or has not received."""

    def leave(self) -> None: ...

_Held = TypeVar("_Held", bound="_HeldBase")

class _HeldBase:
    end: Any
    slot: int
    made: Any
    """The array over the slot, or None."""
    order: Any
    """On a device, the order of the work on it, or None."""
    @property
    def seq(self) -> int: ...
    def __enter__(self: _Held) -> _Held: ...  # Jedi takes Self for this class
    def __exit__(self, *error: object) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """A view of the end's array; else what `_converted(dtype, copy)` of the subclass returns."""

class LoanBase(_HeldBase):
    """A slot that a writer fills within a block, which sends it."""

    meta: Any
    text: bytes | None
    nbytes: int
    """What was filled; 0: all of it."""
    @property
    def is_open(self) -> bool: ...

class FrameBase(_HeldBase):
    """A slot that a reader holds."""

    @property
    def meta_text(self) -> bytes | None: ...
    @property
    def text(self) -> bytes | None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def deliveries(self) -> int: ...
    @property
    def writer(self) -> int: ...
    @property
    def point(self) -> int: ...
    @property
    def point_by(self) -> int: ...
    @property
    def since(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Give the slot back. In mode "one" that acknowledges the frame. Idempotent.

        Examples:
            >>> with xs.Channel.create("frames", 3) as writer, xs.Channel.open("frames") as reader:
            ...     seq = writer.send([1.0, 2.0, 3.0])
            ...     frame = reader.receive()
            ...     frame.close()
            ...     frame.closed
            True
        """
