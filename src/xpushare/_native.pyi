"""The compiled part: atomics, futexes, mappings, buffers, DLPack capsules, shared event slots and the warden thread.

Mechanism only: no policy, no vendor code. Offsets are those of docs/layout.md, the event protocol is
docs/events-protocol.md. Failing system calls raise `OSError` with errno and the call's name. Nothing here takes or
holds the GIL while it blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Self, TypeVar, final

from xpushare.adapters.base import OnDemand

_Handle = TypeVar("_Handle")

# --- the protocol's declarations, of src/native/engine/layout.h -------------------------------------------------------
STRUCTS: Final[dict[str, dict[str, tuple[int, str]]]]  # structure -> field -> offset and `struct` code, in order
LAYOUT: Final[dict[str, int]]  # "structure.field" and other places and sizes
CONSTANTS: Final[dict[str, int]]
MAGICS: Final[dict[str, bytes]]

# --- processes --------------------------------------------------------------------------------------------------------
def forks() -> int:
    """How many forks led to this process (pthread_atfork): differs between a parent and its child."""

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

def lock_holder(fd: int, at: int) -> int | None:
    """pid of the process that holds byte `at` (0 if that pid cannot be seen from here), None if no other process does.
    F_GETLK.
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

def open_handles(open: int, flags: int, ask: int, attribute: int, handles: bytes, into: bytearray, /) -> int:
    """Calls `int open(uint64 *address, handle, unsigned flags)` with each 64 bytes of `handles`, by value, until one
    fails; returns its code, or 0. `into` takes two uint64 for each, also where an interrupt follows: the address, and
    what `int ask(void *value, int attribute, uint64 address)` tells of it, the greatest uint64 where that fails.
    """

@final
class Recogniser:
    """Finds other libraries' allocations, and asks for their handles, as `ask_all` and `name_handles` with the
    functions `ask`, `ask_all` and `name`; of what it knows already it asks no more than the number. It keeps 1,024.

    `attributes` are an allocation's number, which no other has, also not later, its start, its size and its device's
    ordinal, and then those that have to be as `wanted` says. The payload of an export is `payload`, with the size at
    `size_at`, and the handle of 64 bytes behind it. `make(place, start, nbytes, number, handle)` makes the adapter's
    `DriverMemory`.
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

@final
class Importer:
    """Opens one allocation of another process for `HandOver`, by the addresses of a driver's functions: those of
    `open_handles`, with flags and attribute, and `int close(uint64 address)`, each within a scope. `kind`: the
    payload's, whose handle is its own 64 bytes. `make` makes the driver's memory of the address and the size.
    Where anything fails, nothing stays open.
    """

    def __init__(
        self,
        *,
        kind: int,
        open: tuple[int, int],
        ask: tuple[int, int],
        close: int,
        scopes: Scopes,
        make: Callable[[int, int], object],
    ) -> None: ...

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

    def keep(self, fd: OwnedFd, /) -> None:
        """Give up the mapping and its fd, and keep both for `kept`, if there has been no fork since and memory is not
        scarce. It must never have been exported. Nothing may use the mapping any more.
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

    def read(self, raw: bytes, /) -> Fields | None:
        """What a handle says; None unless it was sealed under the key, and this version knows all that it says."""

    def read_array(self, raw: bytes, /) -> tuple[Any, ...] | None:
        """What an array handle says: memory and event (each as bytes and `Fields`; None, None: there is no event), the
        event's point, shape, strides, offset, item size, the text of the dtype, the bytes that were copied, and whether
        such an array can be and lies in the memory's range. None as of `read`, also for the handles in it. Neither
        looks at the boot.
        """

    def seal_array(
        self, memory: bytes, event: bytes | None, point: int, dtype: bytes, itemsize: int, shape: tuple[int, ...],
        strides: tuple[int, ...], offset: int, copied: int, /,
    ) -> bytes:  # fmt: skip
        """An array handle with these handles in it."""

@final
class PeerTable:
    """A peer's mapped table, which opens an export in one call. It does not keep the pidfd (-1: there is none)."""

    def __init__(self, mapping: Mapping, domain: Domain, pidfd: int) -> None: ...
    def ended(self, fields: Fields, /) -> int | None:
        """None while the handle's entry is live; else why it ended, a REASON_… if the peer is honest. ValueError where
        there is no such entry in any table."""

    def entry(self, fields: Fields, /) -> bytes | None:
        """A copy of the handle's entry, checked against the handle; None unless it is live and fits."""

    def open(
        self, fields: Fields, peer: Any, mapped: bool, /
    ) -> tuple[Mapping | None, Lease, int, int, bytes, list[OwnedFd], int, int] | None:
        """Check a handle's entry, hold it, and fetch what it has: (a mapping of its memfd if it is one and `mapped`
        wants that, the hold, nbytes and exposed_nbytes of the whole object, payload, fds otherwise, offset, flags).

        None, with nothing left behind, for a dead exporter, and for anything but a live entry that is not counted and
        whose fds can be fetched. Then the caller finds out elsewhere what is wrong.
        """

    def hold(self, fields: Fields, peer: Any, /) -> tuple[Lease, int] | None:
        """Check a handle's entry and hold it: (the hold, the entry's slot). None as in `open`."""

@final
class Template:
    """What `OwnTable.prepare` makes. It never changes."""

    nbytes: int
    on_demand: OnDemand | None

@final
class OwnTable:
    """This process's own table, mapped writable. `common`: a handle without its seal, with the fields that all handles
    of this process have in common.
    """

    def __init__(self, mapping: Mapping, common: bytes) -> None: ...
    def prepare(
        self, kind: int, flags: int, names: bytes, device: int, object: int, nbytes: int, exposed_nbytes: int,
        inode: int, within: int, fd_count: int, fds: tuple[int, ...], payload: bytes, on_demand: OnDemand | None, /,
    ) -> Template:  # fmt: skip
        """What the exports of one object have in common. `names` are the backend and uuid of the device, 32 bytes, and
        `device` is its number in the table; `within` is where the object begins in what the `fds` stand for.
        """

    def enter(
        self, seal: Seal, template: Template, entry: int, generation: int, flags: int, slot: int, offset: int,
        nbytes: int, /,
    ) -> tuple[bytes, Fields]:  # fmt: skip
        """Fill in an entry, with a new nonce, now and without a deadline, and return its handle. `flags` are those of
        the template and these. `publish` makes it live.
        """

    def publish(self, entry: int, generation: int, /) -> None: ...
    def take(self, domain: Domain, /) -> int | None:
        """An entry for an export, which no importer holds any more; None where all are used. One thread at a time, as
        for `give` and `next_generation`.
        """

    def give(self, entry: int, /) -> None:
        """Take an entry back, for a later export."""

    def next_generation(self) -> int: ...
    @property
    def used(self) -> int:
        """How many entries have ever been taken: the first ones."""
    def new_object(self) -> int:
        """1, 2, 3, …: no two threads get the same number."""

class HandleBase:
    """Base of handles that may own an export. Where `_owner` is not None when an object dies, `_abandoned` is called as
    `__del__` would be.
    """

    _owner: int | None  # the fork in which this object owns the export
    def _abandoned(self) -> None: ...

@final
class HandOver:
    """`share` and `attach` of the common case, by one call each. It takes the classes, dicts and steps in Python that
    they are made of, and lists that say how things are: whether the native way is off, this process's node, its seal
    and its boot.
    """

    def __init__(self, **kit: Any) -> None: ...
    def share(self, array: object, /) -> Any:
        """The handle of an array of ours, in memory of this process on a device without streams. None, with nothing
        exported, for anything else.
        """

    def attach(self, raw: object, /) -> Any:
        """The array behind the bytes of a handle of this user, of an exporter that this process has met, on a
        device that it has opened memory on. None, with nothing left open, for anything else.
        """

    def attach_as(self, raw: object, exchange: object, /) -> Any:
        """The same as an array of the library that has this exchange API, or a `SharedArray` that it has to be made of
        in Python.
        """

    def find(self, device: Any, backend: str | None, address: int, nbytes: int, /) -> Any:
        """The allocation of another library that has those bytes, prepared for exports where it is new here; None where
        Python has to look.
        """

    def find_all(self, leaves: Leaves, alike: dict[int, Any], /) -> None:
        """`find` for the next arrays, as far as it goes and they are like earlier ones, which `leaves` then places.
        `alike`: by the numbers of their kinds, tuples that begin with the device and the backend.
        """

    def export_all(self, ranges: list[Any], implicit: bool, /) -> Any:
        """The handles of as many exports, for a pickle if `implicit`; None, with nothing exported, unless all are of
        prepared allocations of this process.
        """

    def open_all(self, handles: tuple[Any, ...], opened: list[Any], /) -> None:
        """Append the ranges of the first handles, up to one of an exporter that this process has not met, or whose
        opens count, or that only Python opens.
        """

def read_tree(seal: Seal, raw: bytes, /) -> TreeParts | None:
    """What the handle of a tree says; None unless `seal` sealed it, with handles of one exporter, and this version
    knows all that it says. What it says of its arrays is not checked yet.
    """

def flatten(tree: Any, most: int, /) -> Any:
    """The arrays of a tree, and the tree in terms of JSON; NotImplemented for what only Python describes or refuses.
    `most`: bytes of the message.
    """

def unflatten(described: Any, arrays: Sequence[Any], /) -> Any:
    """The tree with these arrays; NotImplemented for what only Python makes or refuses."""

@final
class TreeParts:
    """What the handle of a tree says. Its length is the number of arrays."""

    text: bytes
    copied: int
    def __len__(self) -> int: ...
    def handles(
        self, kind: type[_Handle], boot_id: bytes, /
    ) -> tuple[tuple[_Handle, ...], tuple[tuple[_Handle, int], ...]] | None:
        """The handles of the memory, as objects of that class, and those of the events with their points; None if one
        is of another boot.
        """

    def good(self, itemsizes: tuple[int, ...], /) -> bool:
        """Whether each array names what is there, and lies in its memory. `itemsizes`: of the dtypes."""

    def elements(self) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...], int, int]]:
        """Of each array: its memory, event (-1: none), shape, strides, dtype and offset."""

    def marks(self) -> set[tuple[int, int]]:
        """Which memory has arrays that which event orders."""

    def tensors(
        self,
        exchange: object,
        places: list[tuple[object, int, tuple[int, int]]],
        dtypes: list[tuple[tuple[int, int, int], int]],
        /,
    ) -> list[Any] | None:
        """The arrays, as the library makes them whose DLPack exchange API is given; call `good` before. `places`: of
        each memory what holds it, its address, and DLPack's device; `dtypes`: of each DLPack's type, and the item size.
        None, with nothing made, if it makes none of one of them.
        """

@final
class Leaves:
    """The arrays of a tree that is shared, until its handle is sealed."""

    def __init__(self, arrays: list[Any]) -> None: ...
    def view(self, exchange_of: Callable[[type], object], differs: str, /) -> None:
        """Look at each array by DLPack's exchange API, which `exchange_of` gives (None: it has none); not at those
        whose attribute `differs` is true.
        """

    def next(self) -> int | None:
        """Place the arrays that are like earlier ones and lie in known allocations; the first that is not, or None."""

    def where(self) -> tuple[int, int, int, int] | None:
        """Of the array that `next` named: the number of its kind, DLPack's type of its device, its address and size;
        None if it was not viewed.
        """

    def learn(self, start: int, nbytes: int, device: object, allocation: object, /) -> None:
        """Place arrays in that allocation, too."""

    def allocation(self, address: int, nbytes: int, /) -> Any:
        """The allocation that has these bytes; None if none is known."""

    def skip(self, device: object | None, /) -> None:
        """The caller places the array that `next` named. Others of its kind, on `device`, need not be looked at; None:
        they do.
        """

    def placed(self) -> list[tuple[Any, int, int, int, list[Any]]]:
        """The allocations that arrays were placed in: each, its start, lowest byte and end of the arrays, and these."""

    def assign(self, memory: dict[int, tuple[int, int]], kinds: dict[int, tuple[int, int]], /) -> None:
        """Give what was placed its numbers. `memory`, by the allocation's start: its number, and where it begins;
        `kinds`, by their numbers: event (-1: none) and dtype.
        """

    def set(
        self,
        index: int,
        memory: int,
        event: int,
        dtype: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        /,
    ) -> None:
        """Describe an array that the caller placed."""

    def seal(
        self, seal: Seal, memory: list[bytes], events: list[bytes], points: list[int], text: bytes, copied: int, /
    ) -> bytes | None:
        """The handle; None if it would be too large."""

def check_memfd(fd: int, nbytes: int, inode: int = 0, seals: int = 0, exact: bool = False) -> None:
    """Check that it is safe to map `nbytes` of a peer's fd. ValueError unless it is a memfd of ordinary pages that
    cannot shrink, also has `seals`, has at least `nbytes` (`exact`: exactly as many), and is the file `inode` (0: any).
    """

def request(op: int, fields: Fields, first: int, /) -> bytes:
    """A request to the socket of the handle's exporter: OP_…, for the fds from number `first` on."""

def read_reply(packet: bytes, fds: int, /) -> tuple[int, int]:
    """(STATUS_…, how many fds there are in all), from a reply that came with `fds` fds. OSError(EMFILE) if fds were
    lost on the way; ValueError if the reply makes no sense.
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
    """Base of classes that export a buffer: `memoryview(self)` becomes a view of `self._span()`, a `Span`.

    An object that was made with the three arguments is bound to that memory, which its `_held` keeps. As long as that
    is not None and the process has not forked, a view is of a `Span` with these arguments and that owner, and `_span`
    is not called. The view keeps the span, not this object. Exceptions of `_span` are passed on. The class has a
    weak-reference list; sub-classes may use __slots__.
    """

    def __new__(cls, address: int = ..., nbytes: int = ..., readonly: bool = ..., /) -> Self: ...
    def _span(self) -> Span: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

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

    def blame(self) -> tuple[int, int]:
        """(cause, pid) of the last loss; (0, 0) if none."""

    def attached(self) -> list[int]:
        """Member indices attached, dead ones included."""

    def notify(self, point: int, token: int) -> bool:
        """Have `token` (64 bits) reported by `due()` once `point` is done or lost.

        True when it already is (then nothing is registered). Tokens of a slot that is detached become due at once."""

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
    | Literal["queue", "address", "point", "point_low", "function", "data", "out", "made", "status_out", "mode"]
    | Literal["to", "from", "nbytes", "value", "value_at", "times"]
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

    `relay` prepares a relay thread each time before it makes calls of a queue (below): "mode" is the address of an int
    that holds 2, the capture mode RELAXED. What it sets stays set.

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

@final
class IdleCheck:
    """Whether a queue is idle, for native code: within a scope, and unless it is being captured, `int query(handle)`
    says 0; `not_ready` while it has work.
    """

    def __init__(self, queue: StreamQueue, handle: int, scopes: Scopes, query: int, not_ready: int) -> None: ...
    def end(self) -> None:
        """Nothing can be said from now on."""

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

def withdraw(entry_address: int, reason: int) -> None:
    """End an entry: retired, reason, generation = 0 (seq_cst), while the warden sends none of its fds."""

def offer(entry: int, generation: int, function: int, objects: Sequence[int], a: int, b: int) -> None:
    """Have the fds of `entry` made on demand. For fd i the warden calls
    `int function(int *fd, uint64_t objects[i], int64_t a, uint64_t b)` (0 is success), and closes the fd after sending
    it. The offer ends when the entry is withdrawn.
    """

def notification_fd() -> int:
    """An eventfd of this process, readable while `due()` has something; for event loops."""

def due() -> list[int]:
    """Tokens whose points are done or lost, each once; clears the notification."""

def close_warden() -> None:
    """Stop the thread and close its fds, including the listening socket (at interpreter exit). Idempotent.

    Whatever needs the thread later starts it again; `notification_fd` stays open.
    """
