"""The C extension module: atomics, futexes, mappings, buffers, DLPack capsules, shared event slots and the warden, a
background thread.

The module contains no policy and no vendor code. docs/layout.md defines all offsets, and docs/events-protocol.md the
event protocol. A failing system call raises `OSError` with its errno and the name of the call. No function holds the
GIL while it blocks.
"""

from collections.abc import Callable, Hashable, Sequence
from os import PathLike
from typing import Any, Final, Literal, NoReturn, Self, TypeVar, final, overload

from xpushare.common.errors import Unread

_Handle = TypeVar("_Handle")
Handle = Any  # sharing.handle.Handle, objects.array_handle.ArrayHandle, objects.array.SharedArray: they are above this
ArrayHandle = Any
SharedArray = Any

# --- the protocol's declarations, of src/engine/layout.h -------------------------------------------------------
STRUCTS: Final[dict[str, dict[str, tuple[int, str]]]]  # structure -> field -> offset and `struct` code, in order
LAYOUT: Final[dict[str, int]]  # "structure.field" and other places and sizes
CONSTANTS: Final[dict[str, int]]
MAGICS: Final[dict[str, bytes]]

def register(**classes: type) -> None:
    """Register the Python classes that native code instantiates: `Allocation`, `ArrayHandle`, `Handle`, `Range` and
    `SharedArray`. Each must be a subclass of its native base, and can be registered once. Native code does not call
    their constructors.
    """

# --- processes --------------------------------------------------------------------------------------------------------
def forks() -> int:
    """Return the fork count of this process, which pthread_atfork maintains. A forked child's count is one higher than
    its parent's.
    """

def left(value: bool = ..., /) -> bool:
    """Return whether this process is exiting and has disconnected from its peers, after setting it to `value` if that
    is given. From then on, native code releases no resources, and leaves the cleanup to the kernel.
    """

@final
class OwnedFd:
    """One file descriptor with one owner. It is closed when this object dies, unless `take` has transferred it.

    The number is always above 2, so nobody mistakes it for stdin, stdout or stderr. Each class method makes its
    descriptor in one C call, so no interrupt can leak it.
    """

    number: int  # read-only; -1 once it is closed or taken

    def __init__(self, number: int | OwnedFd) -> None:
        """Take over `number`, or the descriptor of another owner. A number below 3 is replaced by a copy above 2."""

    @classmethod
    def memfd(cls, name: str) -> OwnedFd:
        """Make an empty, sealable memfd (memfd_create(2))."""

    @classmethod
    def bell(cls) -> OwnedFd:
        """Make an eventfd (the bell) for a commons, the memory that an exporter shares with its importers. Through the
        eventfd, these processes wake each other's native background threads (wardens).
        """

    @classmethod
    def copied(cls, fd: int) -> OwnedFd: ...
    @classmethod
    def of_process(cls, pid: int) -> OwnedFd:
        """Make a pidfd (pidfd_open(2))."""

    @classmethod
    def fetched(cls, pidfd: int, fd: int) -> OwnedFd:
        """Duplicate an fd of another process (pidfd_getfd(2))."""

    @classmethod
    def received(cls, connection: int, nbytes: int) -> tuple[bytes, list[OwnedFd]]:
        """Receive one packet of at most 256 bytes from a socket, and the fds that came with it."""

    def take(self) -> int:
        """Transfer the descriptor to the caller."""

    def close(self) -> None:
        """Close the descriptor. A plain close(2) of a descriptor of a commons (an exporter's shared memory) would drop
        this process's POSIX lock on it. This method keeps the lock.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None:
        """Close the descriptor, unless it was taken in the block. An interrupt cannot prevent this."""

@final
class NameLock:
    """The lock on a file with a path. It answers only whether a process may create, replace or remove the file, and
    never proves that a process lives. The owner may read, copy or delete the file, and keeps the lock.

    The lock is released when this object dies. A forked child does not have it.
    """

    @classmethod
    def take(cls, path: str | PathLike[str], inode: tuple[int, int] | None = None, pid_at: int = -1) -> NameLock | None:
        """Take the lock on the file at `path`, without waiting. Returns None if another object has it, in this process
        or in another. Raises FileNotFoundError if no file is there, or another one than `inode`, which is its device
        and inode number. Raises OSError if it is not a regular file of this user.

        While the lock is held, the file contains the holder's pid at `pid_at` (4 bytes), if that is not negative.
        """

    @staticmethod
    def holder(fd: int, pid_at: int = -1, /) -> int | None:
        """Return None if no process has the lock on the file behind `fd`. If a process has it, even this one, return
        the pid that the file contains at `pid_at`, or 0 if it contains none.
        """

    def release(self) -> None:
        """Release the lock. Calling it again does nothing."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

class Refusal(tuple[int, int, str, int]):
    """Why an exporter or an export could not be opened. `code` is one of the constants REFUSED_…. `errno` is that of
    the system call that failed, or 0. `what` is that call, or what is wrong. `detail` is the number that does not fit,
    or the reason.
    """

    @property
    def code(self) -> int: ...
    @property
    def errno(self) -> int: ...
    @property
    def what(self) -> str: ...
    @property
    def detail(self) -> int: ...

def meet(
    fields: Fields, table: OwnedFd = ..., commons: OwnedFd = ..., bell: OwnedFd = ..., pidfd: OwnedFd = ..., /
) -> tuple[Mapping, Domain, OwnedFd, OwnedFd | None] | Refusal:
    """Attach to the exporter of a handle: map the table of its exports, and join its commons (the memory that it shares
    with its importers).

    With `fields` alone, fetch the descriptors by pidfd_getfd(2). Otherwise, they are those that another route brought.
    `commons` and `bell` become the membership's if this succeeds.

    Returns the mapped table, the membership, the table's fd and the exporter's pidfd, which is None if there is none.
    Returns a `Refusal`, and leaves nothing open that it opened, if a step fails or a value is wrong.
    """

def dead(pidfds: Sequence[int]) -> list[int]:
    """Return those of the `pidfds` whose process has died, by one poll(2) that does not wait."""

def lock(fd: int, at: int, /) -> bool:
    """Take a POSIX write lock on byte `at`, without waiting. Returns False if another process holds it."""

def fds_linked_to(folder: str, first: str, second: str, /) -> list[int]:
    """Return the numbers of the descriptors in `folder` (a /proc/PID/fd) whose link targets begin with `first` or
    `second`. Raises OSError.
    """

def exchange(one: str | PathLike[str], other: str | PathLike[str], /) -> bool:
    """Swap two files atomically. Returns False if the file system cannot do that. Raises OSError."""

def lock_holder(fd: int, at: int, count: int = 1, /) -> int | None:
    """Return the pid of a process that holds a lock on any of the `count` bytes that begin at `at` (F_GETLK). 0 means
    that the holder is not visible in this pid namespace. None means that no other process holds a lock.
    """

# --- atomics on shared words (addresses must be mapped and aligned; sequentially consistent) --------------------------
def load64(address: int) -> int: ...
def store64(address: int, value: int) -> None: ...
def futex_wait(address: int, expected: int, timeout: float | None = None, spin: float = 0.0) -> bool:
    """Wait until the 32-bit word differs from `expected`, or until a futex wake-up. Returns False on time-out.

    First spins for at most `spin` seconds, but not on a machine with one CPU. Signals run their Python handlers (so
    `KeyboardInterrupt` works), and the wait continues afterwards.
    """

def futex_wake(address: int, count: int = 2**31 - 1) -> int: ...

# --- memory -----------------------------------------------------------------------------------------------------------
def trim() -> int:
    """Free all memory that `Mapping.keep` has cached. Returns its size in bytes."""

def kept_nbytes() -> int: ...
def copy(dst: int, src: int, nbytes: int) -> None:
    """Copy bytes by memmove, without holding the GIL."""

LEAST_ADDRESS: Final[int]
"""No memory is ever mapped below this address."""

def readable(address: int, nbytes: int) -> bool:
    """Return whether this process can read memory at the first and the last of these bytes, and has memory mapped at
    all between. Takes any integers. The kernel is asked, so a wrong address has no effect.
    """

def fill(dst: int, pattern: bytes, nbytes: int) -> None:
    """Repeat `pattern` over [dst, dst + nbytes), without holding the GIL. `nbytes` is a multiple of len(pattern)."""

def mapped(address: int, nbytes: int) -> str:
    """Return how this process can access all of these bytes: "rw", "r", or "" if some of them are not mapped."""

@final
class Driver:
    """CUDA's driver or HIP's library, for native code, which calls the functions about memory by their addresses. A
    function that the driver lacks is 0.

    `ask` returns one attribute of an address and `ask_all` several, `name` makes the 64-byte handle of an allocation,
    `open` maps the memory of such a handle with `flags`, and `close` unmaps it. `exchange` sets this thread's capture
    mode to `mode`, which disturbs no capture. `push` and `pop` make a context current, or `get` and `set` a device.
    `clear` clears the thread's last error. It is called after a failure.

    The first four `attributes` are an allocation's number, which is never reused, its device's ordinal, its start and
    its size. The other attributes must have the values `wanted`, otherwise other processes cannot open the allocation
    by a handle. A `Recogniser` needs `ask_all`. The size of an opened mapping comes from `range`, otherwise from `ask`.

    `failed(step, code)` returns the exception for a scope that could not be entered. Step 0 is `exchange`, 1 `push` or
    `get`, and 2 `set`.
    """

    def __init__(
        self,
        failed: Callable[[int, int], Exception],
        attributes: tuple[int, ...],
        wanted: tuple[int, ...],
        flags: int,
        mode: int,
        ask: int,
        name: int,
        open: int,
        close: int,
        exchange: int,
        ask_all: int = 0,
        range: int = 0,
        push: int = 0,
        pop: int = 0,
        get: int = 0,
        set: int = 0,
        clear: int = 0,
    ) -> None: ...
    def ask(self, attribute: int, address: int, /) -> int | None:
        """Return an attribute of an address, zero-extended, or None if the call fails."""

    def ask_all(self, attributes: tuple[int, ...], address: int, /) -> tuple[int, ...] | int:
        """Return several attributes of an address, or the driver's code if the call fails."""

    def name(self, address: int, /) -> bytes | int:
        """Return the handle of the allocation at an address, or the driver's code if the call fails."""

    def end(self) -> None:
        """Make no calls any more, since the process exits. Scopes then do nothing."""

@final
class Importer:
    """Maps memory of other processes for which a driver has made a handle. The payload of such an export is `head`,
    then 8 bytes for the size, then the handle. The driver is that of `scopes`.
    """

    def __init__(
        self,
        scopes: Scopes,
        head: bytes,
        make: Callable[[int, int, Callable[[int], object], int], object],
        unmap: Callable[[int], object],
    ) -> None: ...
    def open(
        self, device: Any, release: Callable[[Any], object], fields: Fields, peer: PeerTable, /
    ) -> tuple[Any, Lease] | None:
        """Map the memory of a handle. Return its `Allocation`, and a lease that keeps the exporter from reusing the
        memory. The driver calls of the constructor's argument `scopes` are made around the call that maps.

        The allocation owns the object that the constructor's argument `make` returns, and passes it to `release` when
        it dies.

        Return None, and leave nothing mapped, if this cannot be done in one call. The caller then takes the generic
        path, which finds the reason.
        """

    def open_all(self, payloads: list[bytes], sizes: list[int], into: memoryview, /) -> int | None:
        """Map the memory of each payload, until the driver refuses one. Return the driver's error code, or 0. The
        caller enters the constructor's `scopes` around this call.

        If a payload has another format, or its size differs from the one in `sizes`, nothing is mapped, and the result
        is None.

        `into` has two 64-bit numbers for each payload: the address and the number of mapped bytes (2**64 - 1 if the
        driver does not report it). They stay unchanged for a payload that was not mapped. They are written even if an
        interrupt is raised.
        """

@final
class Recogniser:
    """Finds allocations that other libraries made, and asks the driver for handles of them.

    Up to 8,192 allocations are cached. For a cached allocation, only its number is requested, to check that the
    allocation still exists.

    The payload of an export is `payload`, with the size at `size_at`, and then the driver's handle. `make(place, start,
    nbytes, number, payload)` makes the adapter's `DriverMemory`.
    """

    def __init__(
        self,
        driver: Driver,
        make: Callable[[Any, int, int, int, bytes], object],
        payload: bytes,
        size_at: int,
        backend: str,
    ) -> None: ...
    def add(self, ordinal: int, info: object, scopes: Scopes, place: object, /) -> None:
        """Recognise memory of another device, which `info` describes. Handles are requested inside `scopes`."""

    def find(
        self, device: Any, info: Any, address: int, nbytes: int, known: bool, add: Callable[[Any, Any], Any],
        own: OwnTable | None, /,
    ) -> Any:  # fmt: skip
        """Return the `Allocation` that contains these bytes, on the device that `info` describes. Return None if the
        adapter has to search for it.

        Earlier results are cached, and the cache is searched first if `known` is true. For an allocation that is not in
        the cache, `add(name, allocation)` is called and its result is cached. The name is the tuple (backend, (ordinal,
        start, nbytes, number)). If `own` has exported memory of the device before, the allocation also gets the
        `Template` of its exports.
        """

@final
class Mapping:
    """A shared mapping of an fd. It is unmapped when the object dies, and does not own the fd."""

    def __init__(
        self, fd: int, nbytes: int, offset: int = 0, writable: bool = True, populate: bool = False
    ) -> None: ...
    @classmethod
    def imported(cls, fd: int, inode: int, nbytes: int, writable: bool, /) -> Mapping:
        """Map a peer's memfd. Raises ValueError unless the memfd cannot shrink, has at least `nbytes`, and is the file
        `inode` (0 accepts any).
        """

    def keep(self, fd: OwnedFd | None, owned: bool, /) -> int:
        """Cache the mapping, and its fd if it has one, for reuse. Nothing may use the mapping any more.

        If `owned` is true, only the class method `owned` returns the mapping again. Otherwise the memory was never
        exported, and the class method `kept` may return it. Returns the mapping's number in the cache. Frees the
        mapping and returns 0 if the process has forked since, or memory is scarce.
        """

    @classmethod
    def owned(cls, number: int, /) -> tuple[Mapping, OwnedFd | None] | None:
        """Return the mapping, with its content, and the fd that `keep` has cached for its owner under that number.
        Return None if they were freed.
        """

    @classmethod
    def kept(cls, nbytes: int, /) -> tuple[Mapping, OwnedFd] | None:
        """Return a cached mapping of exactly `nbytes`, zeroed, and its fd."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

@final
class Reservation:
    """Reserved address space (PROT_NONE, MAP_NORESERVE), in which fds are mapped at fixed places. It is released when
    the object dies.
    """

    def __init__(self, nbytes: int, address: int = 0) -> None:
        """Reserve addresses. If `address` is not 0, the reservation begins exactly there, and the call fails with
        EEXIST if the addresses are in use (MAP_FIXED_NOREPLACE).
        """

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def map(self, at: int, fd: int, offset: int, nbytes: int, access: int, /) -> None:
        """Map an fd at base + `at` (MAP_FIXED, MAP_SHARED). `access` is 0 for none, 1 to read, 2 to read and write.
        Raises ValueError for addresses outside the reservation.
        """

    def unmap(self, at: int, nbytes: int, /) -> None:
        """Unmap the fd from base + `at`, but keep the addresses reserved, by one mmap (PROT_NONE, MAP_FIXED)."""

    def protect(self, at: int, nbytes: int, access: int) -> None: ...

# --- handles and peers ------------------------------------------------------------------------------------------------
@final
class Fields:
    """The fields in the 256 bytes of a handle, by their names in docs/layout.md (`sharing.handle.FIELDS`). Nothing is
    checked.
    """

    def __init__(self, raw: bytes, /) -> None: ...
    def key(self, opener: int, /) -> bytes:
        """Return the key of the import in the cache. It consists of the exporter's cookie, the numbers of the
        exporter's object and of the opener, and the flags READ_ONLY and PICKLED. An import from a pickle has its own
        key, since this process may have to export that memory later.
        """

    @property
    def names(self) -> bytes:
        """The bytes by which the handle identifies its device: backend and uuid."""

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

def read_key(path: str, /) -> tuple[int, int, bytes]:
    """Read the user's key from its file. Return a code, `KEY_…` in `CONSTANTS`, its detail, and the key, which is empty
    unless the code is `KEY_GOOD`. The detail is the errno, the file's user, its mode, or its size.
    """

@final
class Seal:
    """The user's key, under which handles and array handles are sealed."""

    def __init__(self, key: bytes) -> None: ...
    def hash(self, data: bytes, /) -> bytes:
        """Return BLAKE2b-256 of `data` under the key."""

    def read(self, raw: bytes, boot_id: bytes, /) -> Handle | int:
        """Return the handle of these bytes. Return one of the constants FLAW_HANDLE_… unless the bytes were sealed
        under the key, in that boot, and this version of the package knows all values in them.
        """

    def read_message(self, raw: bytes, boot_id: bytes, /) -> ArrayHandle | tuple[int, int]:
        """Verify a message. Returns a flaw unless it was sealed under the key, in that boot: one of the constants
        FLAW_…, and where the handle begins that has the flaw, or 0. `MessageState._flaw` checks its arrays.
        """

    def moved(self, raw: bytes, handles: bytes, /) -> bytes:
        """Return a copy of a message with other memory handles, as many as before, and a new seal. Raises ValueError
        unless the message was sealed under the key.
        """

# The bases of public classes have no public attributes of their own, since editors would show them.

class HandleState:
    """The base of `sharing.handle.Handle`. Handles compare by their bytes."""

    def __bytes__(self) -> bytes: ...
    @classmethod
    def _of(cls, raw: bytes, why: Unread = ..., /) -> Handle:
        """Make a handle of 256 bytes that were verified before. With `why`, make a handle without fields, of a pickle's
        bytes that are not a handle in this process: calling `why` raises the reason.
        """

    @property
    def _unread(self) -> Unread | None:
        """The callable `why` that was passed to `_of`, or None if this is a handle."""

    @property
    def _newest(self) -> Callable[[], Any] | None:
        """The callable that was passed to `_following`, or None."""

    def _following(self, newest: Callable[[], Any], /) -> Handle:
        """Return a copy that was looked up by a name. `newest` returns the current handle of that name (see
        `sharing.handle.following`).
        """

def fields_of(handle: Handle, /) -> Fields: ...

class PeerTable:
    """The base of `Peer`: an exporter's mapped table of exports, with methods that open an export in one call. It does
    not own the pidfd, whose number is -1 if there is none. `direct` says that pidfd_getfd(2) works.

    If a call is refused, it leaves nothing open, and returns the reason.
    """

    direct: Final[bool]
    pidfd_number: Final[int]

    def __new__(cls, mapping: Mapping, domain: Domain, pidfd: int, direct: bool) -> Self: ...
    def ended(self, fields: Fields, /) -> Refusal | None:
        """Return None while the handle's entry is live, otherwise the reason. The exporter may have died."""

    def stands(self, fields: Fields, /) -> bool:
        """Return whether the handle's entry is still live. This ignores the deadline of the export, which may have
        passed.
        """

    def find(self, fields: Fields, /) -> tuple[int, int, int, int] | Refusal:
        """Check the handle's entry. Returns the number of the export's form, the number of its device in the table, how
        many descriptors it has, and the size of the whole object.
        """

    def hold(self, fields: Fields, /) -> tuple[Lease, int] | Refusal:
        """Check the handle's entry and that the exporter is alive, and take a lease of the entry. Returns the lease and
        the entry's slot.

        If the export can be opened only a limited number of times, the lease takes one of them (see `Lease.spend`).
        Raises InvalidArgumentError if this process is no member of the commons any more.
        """

    def fetch(self, fields: Fields, /) -> list[OwnedFd] | Refusal:
        """Fetch the descriptors of the handle's entry by pidfd_getfd(2)."""

    def open(
        self, fields: Fields, maps: bool, fds: list[OwnedFd] = ..., /
    ) -> tuple[Mapping | None, Lease, int, int, bytes, list[OwnedFd], int, bool, int] | Refusal:
        """Open an export: take a lease of its entry as `hold` does, and fetch the export's descriptors by
        pidfd_getfd(2), unless another route has brought `fds`.

        Returns a tuple of:

        - the mapping of the memfd, or None if the export is not a memfd or `maps` is false
        - the lease
        - `nbytes` and `exposed_nbytes` of the whole object
        - the payload
        - the other descriptors
        - the offset of the object in the memory of the descriptors
        - whether the export is read-only
        - the number of the export's form
        """

@final
class Imports:
    """The objects of other processes that this process has open, by `Fields.key`. They are held by weak references, so
    this keeps none of them open. `Imports` also stores how handles of each device are opened (see `decide`).
    """

    peers: dict[bytes, Any]  # PeerTables, by cookie

    def get(self, key: Any, /) -> Any:
        """Return the object that is open under the key, or None."""

    def add(self, key: Any, made: Any, /) -> Any:
        """Add `made` under the key, and return it. If another object is open under the key, return that object
        instead.
        """

    def forget(self, key: Any, /) -> None:
        """Forget the object that was open under the key and has died, but not a newer one."""

    def objects(self) -> list[Any]:
        """Return all open objects."""

    def hold(self, fields: Fields, key: Any, /) -> tuple[Any, Lease] | None:
        """Return the object that is open under the key, and a lease of its entry. Return None if no object is open
        under the key, or if `PeerTable.hold` would refuse it.
        """

    def open(self, handles: tuple[Handle, ...], opened: list[Any], /) -> list[tuple[Handle, Any, Any, Any]] | None:
        """Append the ranges of handles to `opened`, up to the first handle whose allocation is not open yet, or that
        can be opened only a limited number of times.

        Return the remaining handles as tuples (handle, opener, device, context), with the values that `decide` has
        stored. Return None if `decide` has stored none for one of the handles, or this process has not attached to the
        exporter.
        """

    def decide(self, handle: Handle, opener: Any, number: int, device: Any, context: Any, /) -> None:
        """Store that `opener` opens the handles of this handle's device, on `device` and in `context`, unless the
        caller requests another device. `number` is the opener's number in the keys of imports (see `Fields.key`).
        """

    def decided(self, handle: Handle, /) -> tuple[Any, Any, Any] | None:
        """Return the (opener, device, context) that `decide` has stored for the handle's device, or None."""

@final
class Template:
    """The common part of all exports of one object, made by `OwnTable.prepare`. It never changes."""

    nbytes: int

@final
class Exported:
    """One export of this process. `OwnTable.export` publishes it, once. Before that it has no handle."""

    def __new__(
        cls, template: Template, source: Any, keep: Any = None, offset: int = 0, nbytes: int = 0,
        read_only: bool = False, implicit: bool = False, foreign: bool = False, slot: int = 0,
    ) -> Self:  # fmt: skip
        """Describe an export. `offset` and `nbytes` select the exported bytes of the object. `slot` is the slot of an
        event.
        """
    source: Final[Any]  # the result of opening the handle in this very process
    keep: Final[Any]  # another library's array, which is kept alive
    handle: Final[Handle]  # None until it is published
    nbytes: Final[int]  # of the whole object
    generation: Final[int]
    deadline: Final[int]  # of the monotonic clock; 0 if it has none
    entry: Final[int]
    fds: Final[int]  # descriptors that this process holds for the object
    foreign: Final[bool]  # importers may use the memory even after the export has ended
    implicit: Final[bool]  # made by pickling
    live: Final[bool]
    outlives: bool  # made by pickling, and its object has died

class Exposure:
    """Tracks which other processes may have exported memory of this process, and whether that memory can be reused.

    It is the `exposure` of an allocation, whose exports report their end to it. Any thread may call any method.
    """

    def free(self) -> bool | None:
        """Return True if no other process can have the memory any more, False if one may have it, and None if this will
        never be known, for example after a fork.
        """

    def spoil(self) -> None:
        """Make `free` return None from now on. Call this if some process may use the memory for longer than its lease
        lasts.
        """
    prepared: Any  # can be set: the template of the allocation's exports
    serial: int  # can be set: the allocation's number, 0 before the first export

@final
class OwnTable:
    """This process's own table of exports, mapped writable. It keeps live exports alive.

    `common` is an unsealed handle with the fields that all handles of this process share. Any thread may call any
    method at any time.
    """

    def __init__(self, mapping: Mapping, common: bytes, domain: Domain) -> None: ...
    @overload
    def prepare(
        self, kind: int, flags: int, names: bytes, device: int, object: int, nbytes: int, exposed_nbytes: int,
        inode: int, within: int, fds: tuple[int, ...], payload: bytes, /,
    ) -> Template:  # fmt: skip
        """Return the template of the exports of one object. `names` are the backend and uuid of the device, 32 bytes,
        and `device` is its number in the table. `within` is the offset of the object in the memory of the `fds`.

        If `function` is given, the fds are made on demand. For the fd with index i, the warden (the native background
        thread) calls `int function(int *fd, uint64_t objects[i], int64_t a, uint64_t b)`, which returns 0 for success.
        The warden closes the fd after sending it.
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
        """Publish new exports, and return a handle for each of them. If the table has not enough room for all of them,
        publish none and return None.

        `opens` is how often each export can be opened. `deadline` is a time of the monotonic clock, or 0 for none.
        """

    @overload
    def of_range(self, range: RangeBase, template: Template, read_only: bool, implicit: bool, /) -> Exported: ...
    @overload
    def of_range(self, range: RangeBase, template: None, read_only: bool, implicit: bool, /) -> Exported | None:
        """Make an export of a range of an allocation. If `template` is None, the allocation's own template is used.
        Returns None if the allocation has no template, or if this process may not export the memory.
        """

    def find(self, fields: Fields, /) -> Exported | None:
        """Return the live export behind a handle."""

    def exports(self) -> list[Exported]:
        """Return all live exports, the oldest first."""

    def end(self, exported: Exported, reason: int, /) -> bool:
        """End an export, unless it has ended already. Returns whether importers may still use the memory. If so, the
        table keeps the memory alive and the entry in use until `release` is called.
        """

    def release(self, exported: Exported, /) -> None:
        """Drop an ended export. Its entry becomes free."""

    def set_deadline(self, exported: Exported, deadline: int, /) -> None:
        """Change the deadline of a live export."""

    def give_open(self, fields: Fields, until: int = ..., /) -> bool:
        """Let the handle be opened once more. `until` extends the handle's validity. Returns False if the export has
        ended.
        """

    @property
    def used(self) -> int:
        """The number of entries that have ever been used. They are the first entries of the table."""

    @property
    def live(self) -> int:
        """How many exports are live."""

    def new_object(self) -> int:
        """Return a new serial number. The numbers count up from 1, and no two threads get the same number."""

    def object_named(self, name: Hashable, /) -> int:
        """Return the serial number for `name`, which identifies an object of another library. The name keeps its number
        until 4,096 other names have been requested.
        """

@final
class End:
    """Releases a resource when its owner has died, by one call of `release(*arguments)`, unless `release` is None.

    Only the owner refers to an `End`. The owner's own `__del__` would be too early: weak references to the owner still
    work while `__del__` runs, so another thread could take the owner out of a cache while it is being released.

    `with End(release, ...):` releases a resource that the block prepares for its owner, if the block raises. An
    interrupt releases it, too, from the call of `End` to the end of the block: then the owner has it, and the `End`
    releases nothing any more. The owner is made in the block, unless it would release the resource when it dies. An
    interrupt may still come right after the block: where nothing may be lost even then, and the owner would not release
    the resource when it dies, `except BaseException` is right, since no call follows it.

    Nothing is called in a forked child, or after this process has left.
    """

    def __new__(cls, release: Callable[..., object] | None, /, *arguments: Any) -> Self: ...
    @classmethod
    def repeated(cls, release: Callable[..., object], /, *arguments: Any) -> Self:
        """Make an `End` that calls `release` again if an exception that is no `Exception`, such as the
        `KeyboardInterrupt` of a signal, has ended the call. `release` must be idempotent.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def __del__(self) -> None:
        """Release the resource now."""

class Pinned:
    """Counts the pins of a mapping: the buffers and queue operations that use it."""

    pins: int  # both are read-only
    working: int  # how many of the pins belong to queue operations

@final
class Pin:
    """Keeps a range open, and prevents the unmapping of the pages in use, for as long as it lives. Each buffer, capsule
    and queue operation holds one.
    """

    def __new__(cls, piece: object, mapped: Sequence[Pinned], /) -> Self: ...
    def works(self) -> None:
        """Record that only a queue operation holds this pin."""

class Resource:
    """Owns `driver` and releases it once, in the process that made it, when the last reference is dropped."""

    def __new__(cls, device: Any, driver: Any, release: Callable[..., object] | None, /, *arguments: Any) -> Self: ...
    device: Any  # all are read-only
    driver: Any
    forks: int  # how often this line of processes had forked when this was made
    @property
    def foreign_process(self) -> bool:
        """True in a child that was forked after this object was made."""

    def on_death(
        self, forget: Callable[[Any], object], key: Any, keep: Callable[[End], object] | None = None, /
    ) -> None:
        """When this object has died, call `forget(key)` before the driver resource is released. Caches use this to drop
        the dead object.

        With `keep`, the resource is not released. Instead, `keep` is called with a new `End` that owns it.
        """

    reopens: tuple[Any, ...] | None
    """The arguments of `imported` that precede `end`. With these, and the `End` that `keep` received, this object can
    be rebuilt. None if rebuilding saves nothing.
    """

@final
class Timeline(Resource):
    """This process's attachment to an event's slot. There is one for each event and process, however often the event is
    opened.

    The attachment ends when this object dies. Queues that still have to signal the event, or to wait for it, keep this
    object alive.
    """

    def __new__(
        cls, device: Any, domain: Domain, slot: Slot, release: Callable[..., object] | None, /, *arguments: Any
    ) -> Self: ...
    driver: Domain
    slot: Slot  # read-only
    prepared: Template | None  # for exports by this process

class AllocationBase(Resource):
    """The base of `Allocation`, which owns unified shared memory (USM). For an import, `newest` is the handle by which
    it was last opened, and `earlier` has the handles by which it was opened before.
    """

    def __new__(
        cls, device: Any, driver: Any, end: End, kind: str, address: int, nbytes: int, host_accessible: bool,
        foreign: bool, source: object, serial: int, name: object, /
    ) -> Self: ...  # fmt: skip
    kind: Any  # read-only, as the fields below
    address: int
    nbytes: int
    host_accessible: bool
    imported: bool
    foreign: bool
    source: Any
    name: Any
    earlier: dict[Any, Any]
    owned: bool  # an import that can be exported from here; this and the next six can be set
    lent: bool  # the memory is used again once this process drops the arrays over it, so it is not shared in place
    exposure: Any  # None means that the memory is never reused
    uses: Any  # a list of leases that can be called, or None: see `Lease`
    prepared: Any
    newest: Any
    known_serial: int  # 0 before the first export

    def opened_by(self, handle: Handle, /) -> bool:
        """Make a handle the `newest` one of this import. The former newest handle moves to `earlier`, unless the new
        handle covers the same bytes or belongs to the same pickle. Returns whether it is time to drop the earlier
        handles that have ended.
        """

class PagesBase(Resource):
    """The base of objects that own physical memory."""

    def __new__(cls, device: Any, driver: Any, end: End, nbytes: int, ipc_enabled: bool, imported: bool, /) -> Self: ...
    nbytes: int  # read-only, as the next two
    ipc_enabled: bool
    imported: bool
    known_serial: int  # 0 before the first export

def imported(
    device: Any, driver: Any, kind: str, address: int, nbytes: int, host_accessible: bool, owned: object, end: End,
    keepable: bool = False, /,
) -> Any:  # fmt: skip
    """Make the `Allocation` of memory that another process exported. `owned` is the object by which this process can
    export the memory, or None. If `keepable` is true, the mapping is worth caching for a moment after its close.
    """

@final
class AddressMap:
    """Live allocations by their addresses. It holds weak references."""

    def __init__(self) -> None: ...
    def add(self, made: object, /) -> None:
        """Add an `AllocationBase`. An object of any other type is ignored, since it has no address."""

    def find(self, address: int, /) -> Any | None:
        """Return the live allocation that contains `address`. If several allocations begin at one address, return the
        newest.
        """

    def all(self) -> list[Any]: ...

class RangeBase:
    """A piece of an allocation, and the object that keeps it open. Its fields are read-only. Ranges compare by
    identity.
    """

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
        """Return a copy of this range with the given fields replaced."""

    @classmethod
    def opened(cls, handle: Handle, allocation: Any, device: Any, context: Any, lease: Any, /) -> Self | None:
        """Return the range that an opened handle names, or None if it does not lie in the allocation."""

def flatten(
    tree: Any, most: int, scalar: type | None, ask: Callable[[str, Any, Any], Any], path: list[Any], /
) -> tuple[list[Any], Any]:
    """Return the arrays of a tree, and the tree as JSON values. `most` limits the bytes of the message. `scalar` is the
    type of NumPy's scalars, or None if NumPy is not loaded.

    `ask("leaf", x, None)` returns the JSON value of an object that is no array and no container, and
    `ask("subclass", x, node)` that of a subclass of dict, list or tuple, for which native code made `node`. For
    "large", "deep" and "key" it raises the error. After an error, `path` has the keys that lead to its place, the last
    one first.
    """

def unflatten(described: Any, arrays: Sequence[Any], make: Callable[[Any, list[Any] | None], Any], /) -> Any:
    """Return the tree with these arrays. `make` returns the object of another JSON value, or raises the error. It gets
    the objects that this value holds, if that is a list.
    """

class MessageState:
    """The base of `objects.array_handle.ArrayHandle`: the handle of an array, or of a tree of arrays.

    If an object that owns its exports dies, its method `_abandoned` is called, as `__del__` would be.
    """

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
    def __bytes__(self) -> bytes: ...
    @classmethod
    def _of(cls, raw: bytes, why: Unread, /) -> ArrayHandle:
        """Make a handle without content, of a pickle's bytes that are not a message in this process. Calling `why`
        raises the reason.
        """

    @property
    def _unread(self) -> Unread | None: ...
    @property
    def _newest(self) -> Callable[[], Any] | None: ...
    def _following(self, newest: Callable[[], Any], /) -> ArrayHandle: ...
    @property
    def _text(self) -> bytes:
        """The dtypes and the tree. See `objects.message`."""

    @property
    def _copied(self) -> int:
        """How many bytes `share` copied."""

    @property
    def _count(self) -> int:
        """How many arrays the message has."""

    @property
    def _memory(self) -> tuple[Handle, ...]:
        """The handles of the memory that the arrays lie in."""

    @property
    def _events(self) -> tuple[tuple[Handle, int], ...]:
        """The handles of the events that order the content, each with the number of the signal at which the content is
        complete.
        """

    @property
    def _elements(self) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...], int, int]]:
        """For each array, the index of its memory, the index of its event (-1: none), its shape and strides, the index
        of its dtype, and the offset of its first element in the memory's range.
        """

    @property
    def _marks(self) -> set[tuple[int, int]]:
        """For each array that has an event, the indices of its memory and of its event."""

    def _flaw(self, itemsizes: tuple[int, ...], /) -> tuple[int, int] | None:
        """Return None if all arrays have valid shapes and lie in their memory, given the item sizes of the dtypes.
        Otherwise, return one of the constants FLAW_LEAF_…, and the number of the first array that has the flaw.
        """

    def _arrays(
        self, ranges: list[Any], dtypes: tuple[Any, ...], orders: dict[tuple[int, int], Any], /
    ) -> list[SharedArray]:
        """Make the arrays, after `_flaw` has returned None. `ranges` contains the memory. `orders` maps a pair (index
        of a memory, index of an event) to the signals that readers of the array wait for.
        """

    def _tensors(
        self, exchange: object, places: list[tuple[object, int, tuple[int, int]]],
        dtypes: tuple[tuple[tuple[int, int, int], int], ...], /,
    ) -> list[Any] | None:  # fmt: skip
        """Make tensors by a DLPack exchange API. `places` contains, for each memory, its owner, its address and
        DLPack's device. `dtypes` contains DLPack's types and the item sizes. Returns None if the library has no tensor
        for one of the arrays.
        """

    def _own(self) -> None:
        """Make this process the owner of the message's exports. From now on, closing the message ends them."""

    def _end(self) -> bool:
        """Close the message. Return whether it owned its exports, which the caller then has to end."""

KINDS_MOST: Final[int]

@final
class Kinds:
    """Caches results of `Leaves.settle` and `Leaves.produce` for kinds of arrays. Later calls of `share` reuse them."""

    def clear(self) -> None: ...

class Leaves:
    """The base of `Placing`: the arrays of one call of `share`, until they are sealed as a message.

    Arrays with the same type, device and element type are of one kind, and are described alike. Native code describes
    this package's arrays, arrays of NumPy, memoryviews, and arrays of libraries that have DLPack's exchange API. Python
    code describes all other arrays and adds them by `put`. The numbers of their kinds begin at KINDS_MOST.
    """

    def __new__(cls, arrays: list[Any], read_only: bool, known: Kinds = ..., /) -> Self:
        """Collect these arrays for a message. `read_only` makes all of them read-only for receivers. `known` is the
        cache of what earlier calls found out about kinds of arrays (see `Kinds`).
        """

    arrays: tuple[Any, ...]
    dtypes: list[Any]  # by their numbers in the message
    read_only: bool
    copied: int  # bytes that were copied, as the message says

    def view(self, ordered: bool = True, /) -> list[tuple[int, Any, Any, tuple[int, int, int, int, int] | None]]:
        """Read the arrays. Return a tuple for each kind of arrays (see the class) whose device is not known yet: the
        kind's number, one of its arrays, their device and None.

        If the arrays belong to another library, the device is None. If it has DLPack's exchange API, the last item is a
        tuple: DLPack's device type and number, and the code, bits and lanes of an element. If `ordered` is true, a kind
        counts as known only if the stream that produces its arrays is known, too.
        """

    def stream(self, kind: int, /) -> int | None:
        """Return the number of the stream on which the library of this kind of arrays works now. Returns None if the
        library does not report its stream.
        """

    def settle(self, kind: int, dtype: Any, device: Any, context: Any, /) -> None:
        """Set the dtype and the device of a kind of another library's arrays. Buffers in memory on another device are
        described by Python code.
        """

    def finds(self, kind: int, finder: Recogniser, info: Any, /) -> None:
        """Set the `Recogniser` that finds the memory of this kind of array, and `info`, which describes the arrays'
        device to the recogniser.
        """

    def produce(self, kind: int, work: Resource | None, number: int | None, lasting: bool, /) -> None:
        """Set `work`, the queue over the stream that produces this kind of arrays. `number` is what `stream` has
        returned for the kind. `lasting` means that the number always belongs to this queue.
        """

    def producers(self) -> dict[int, Any] | None:
        """Return the queues that produce the arrays, by the number of the arrays' kind, or None if there are none.
        Kinds with the same queue have the same object.
        """

    def next(
        self, maps: tuple[AddressMap, ...] = ..., add: Callable[[Any, Any], Any] = ..., own: OwnTable | None = ..., /
    ) -> int | None:
        """Assign arrays to the allocations in which they lie. These are allocations that were passed to `learn`, or
        that the `Recogniser` of the arrays' kind finds. Returns the index of the next array whose allocation was not
        found, or None if there is none.

        With `maps`, the allocations of buffers are looked up in the first of them. The recogniser also makes an
        `Allocation` for memory that it meets for the first time (see `Recogniser.find`), unless one of the maps
        contains the address.
        """

    def where(self) -> tuple[int, int, int, Any, Any, Recogniser | None, Any, int] | None:
        """Describe the memory around the array that `next` returned. Adjoining arrays are treated as one block. Returns
        None if `settle` was not called for the array's kind, otherwise a tuple of:

        - the kind
        - the address and the size of the first array in the block
        - the device and the context
        - the kind's recogniser, and its `info` of the device
        - the total size of the arrays in the block
        """

    def learn(self, allocation: Any, context: Any, /) -> None:
        """Add an allocation in which arrays may lie."""

    def skip(self) -> None:
        """Skip the array that `next` returned. The caller passes it to `put` later."""

    def put(
        self, index: int, range: Any, first: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any,
        kind: int, /
    ) -> None:  # fmt: skip
        """Record that the array with that index lies in `range`, a range of an allocation. `first` is the offset of its
        first element in the range, in bytes. `kind` is the number of the array's kind.
        """

    def groups(self, events: dict[int, int] = {}, event: int = -1, whole: bool = False, /) -> list[Any]:
        """Return the ranges to export: in each allocation, one range for the read-only arrays and one for the writable
        arrays. A range is the bytes that its arrays span or, with `whole`, the whole allocation. `events` maps the
        number of a kind (see `put`) to the index of the event that orders its arrays, or to -1 if none does. `event` is
        the index for all other kinds.
        """

    def seal(
        self, seal: Seal, memory: tuple[Handle, ...], events: tuple[tuple[Handle, int], ...], text: bytes, /
    ) -> ArrayHandle | None:
        """Return the sealed message, or None if it would be too large. Call `groups` first."""

# --- data from peers --------------------------------------------------------------------------------------------------
def check_memfd(fd: int, nbytes: int, inode: int = 0, seals: int = 0, exact: bool = False) -> None:
    """Check that `nbytes` of a peer's fd can safely be mapped. Raises ValueError unless the fd is a memfd of ordinary
    pages that cannot shrink, has the `seals`, has at least `nbytes` (with `exact`, exactly as many), and is the file
    `inode` (0 accepts any).
    """

def request(op: int, wanted: list[tuple[Fields, int]], /) -> bytes:
    """Return the bytes of a request to an exporter's socket. `op` is an OP_… constant. `wanted` contains at most
    FDS_AT_ONCE handles' fields, each with the index from which on the descriptors of its entry are requested.
    """

def read_reply(packet: bytes, asked: int, fds: int, /) -> list[tuple[int, int, int]]:
    """Read a reply that came with `fds` descriptors to a request for `asked` entries. The reply may cover only the
    first entries. Returns a tuple for each of these: the STATUS_…, how many descriptors came, and how many the entry
    has in all. Raises OSError(EMFILE) if descriptors were lost on the way, and ValueError if the reply makes no sense.
    """

# --- buffers and DLPack -----------------------------------------------------------------------------------------------
@final
class Span:
    """A buffer, of format "B" by default, over memory that `owner` keeps alive. Every view of the span keeps the span
    and its owner alive.

    `shape`, `strides` (in bytes) and `format` give the buffer a shape. PEP 3118's flags are honoured: requesting
    contiguous or writable memory raises BufferError if this memory is not.
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

class ObjectBase:
    """The base of classes whose objects hold a resource until they are closed. Objects of these classes can be weakly
    referenced.
    """

    def _hold(self, held: object, forks: int, /) -> None:
        """Give the object its resource. `forks` is the number that the function `forks` returned when the resource was
        made.
        """

    def _give_up(self) -> None:
        """Drop the object's resource, and the exports of its pickles."""

    @property
    def _held(self) -> Any:
        """The object's resource, or None if it is closed."""

    @property
    def _usable(self) -> Any:
        """The object's resource, or None if it is closed or the process has forked since the resource was made."""
    _exports: Any
    """The exports of the object's pickles, or None."""

class BufferBase(ObjectBase):
    """The base of classes that export a buffer: `memoryview(self)` becomes a view of the `Span` that `self._span()`
    returns. The view keeps the span alive, not this object. Exceptions of `_span` are passed on.
    """

    def _span(self) -> Span: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    _pinned: object
    """What the consumer of the object's array interface needs as long as the object lives."""

class ArrayState(BufferBase):
    """The base of `objects.array.SharedArray`."""

    @property
    def _shape(self) -> tuple[int, ...]: ...
    @property
    def _strides(self) -> tuple[int, ...]: ...
    @property
    def _dtype(self) -> Any:
        """The dtype, or None if the array came from a pickle that could not be opened."""

    @property
    def _offset(self) -> int:
        """The offset of the first element in the range."""

    @property
    def _message(self) -> ArrayHandle | None:
        """The handle that `attach` opened for the array."""
    _order: Any
    """The signals that readers of the array have to wait for, or None."""

def array(
    held: Any, forks: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, offset: int, message: Any,
    order: Any, /,
) -> SharedArray: ...  # fmt: skip
def view_array(
    array: Any, /
) -> tuple[int, tuple[int, ...], tuple[int, ...], int, Any, bool, tuple[int, int, int, int, int] | None] | None:
    """Describe an array of NumPy, or of a library with DLPack's C exchange API, as `Leaves.view` does. The result is
    the address, the shape, the strides in bytes, the size of an element, the array's own dtype, and whether it is
    read-only. The last item has DLPack's device type and number, and the code, bits and lanes of an element. Then the
    dtype is None unless the elements look like bytes. The last item is None for NumPy. Streams are not consulted.

    Returns None if the array is of another library, is empty, or means more than a view shows.
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
    """Make a DLPack capsule ("dltensor_versioned" 1.x, or "dltensor") that keeps `owner` alive until its consumer
    deletes it, from any thread.

    `strides` are in elements, or None for C order. `dtype` is (code, bits, lanes). `copied` is DLPack's flag of that
    name, which only a versioned capsule has. An unversioned read-only capsule raises BufferError.
    """

@final
class DLTensor:
    """The content of another library's capsule. This object takes over the capsule (renames it "used_…"), and calls the
    deleter of the content when it dies.
    """

    def __init__(self, capsule: Any) -> None:
        """Take over the capsule. Raises ValueError for anything but an unused DLPack capsule, and BufferError for a
        major version other than 1.
        """

    address: int
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    read_only: bool

# --- membership, holders, event slots ---------------------------------------------------------------------------------
@final
class Domain:
    """This process's membership in one commons, the memory that an exporter shares with its importers. There is one
    `Domain` for each commons and process.

    It takes over two descriptors, and makes them close-on-exec: `fd` is the commons, and `bell` an eventfd that wakes
    its members. `leave` closes the commons (then `fd` is -1). The bell is closed when the object dies. If the
    constructor raises, the caller still owns both. In a forked child, the commons' descriptor is closed at once.
    """

    def __init__(self, fd: int, bell: int, cookie: bytes, owner: bool) -> None:
        """Map the commons, which is the shared memory behind `fd`, and claim a member index. Raises ValueError if the
        seals, the size, the magic number or the cookie is wrong.

        The owner gets index 0, and writes the header. Any other process gets the first free index, and removes dead
        members on the way. Raises OSError(ENOSPC) if all 1024 indices are in use. While this process is a member, it
        must not close another descriptor of this file, which would drop its POSIX lock.
        """

    @property
    def fd(self) -> int: ...
    @property
    def bell(self) -> int: ...
    @property
    def member(self) -> int: ...
    @property
    def address(self) -> int: ...
    def leave(self) -> None:
        """Leave the commons cleanly, as docs/events-protocol.md describes. Idempotent. In a forked child this only
        unmaps and closes.
        """

    def members(self) -> list[tuple[int, int, int, bool]]:
        """Return for each attached member the index, the pid as seen from here or 0, the attach time in ns since the
        epoch, and whether it is alive.
        """

    def reap(self) -> int:
        """Clean up after dead members. Each call does one step of 4,096 slots and entries for each of them. Returns how
        many clean-ups this has completed.
        """

    # the processes that hold an entry of the owner's table
    def leave_if_idle(self) -> bool:
        """Leave if this process has no lease of an entry here, and is attached to no slot. Returns whether it has left.
        Meanwhile, no thread can take a lease or attach.
        """

    def stands(self) -> bool:
        """Return whether this process is still a member: it has not left or forked, and nothing in it has closed the
        descriptors.
        """

    def mark(self, entry: int, /) -> None:
        """Record that some process may use the memory of this entry for longer than its lease lasts."""

    def holders(self, entry: int) -> list[int]:
        """Return the indices of the other living members that have a lease of `entry`. Cleans up after dead members
        first.
        """

    def reached(self, entry: int) -> bool:
        """Return whether any member has a lease of `entry`, or has closed it while its device may still use the memory.
        Cleans up after dead members first.
        """

    def set_opens(self, entry: int, count: int) -> None:
        """Set how many times an export may still be opened, and clear the time that `renew` has set."""

    def take_open(self, entry: int) -> bool:
        """Count down how often an export may still be opened. Returns False if the number is 0 already."""

    def give_open(self, entry: int) -> None:
        """Count up how often an export may still be opened, to undo a `take_open` or for a new pickle."""

    def opens_left(self, entry: int) -> int: ...
    def renew(self, entry: int, until: int) -> None:
        """Count up the number of times that a pickled export may still be opened. The export stays valid at least until
        the given time (CLOCK_MONOTONIC, nanoseconds).
        """

    def renewed(self, entry: int) -> int: ...
    def own(self, entry: int) -> None:
        """Record that this process exports the memory of this entry itself from now on. Call this only while holding a
        lease of the entry.
        """

    def owned(self, entry: int) -> bool:
        """Return whether any other process exports the memory of this entry itself. If so, the exporter that owns the
        table never reuses the memory.
        """

    # slots, owner only
    def new_slot(self) -> int:
        """Return the index of a zeroed slot to which no living process is attached. Raises OSError(ENOSPC) if all are
        in use.
        """

    def release_slot(self, index: int) -> None:
        """Release a slot. It can be reused once no living process is attached to it."""

@final
class Lease:
    """Marks this process as a holder of an entry, which is one export of another process, until the object dies. The
    exporter does not reuse the memory meanwhile. `peer` is kept alive.

    This process counts its leases of an entry. The first one sets the process's bit in the shared memory, and the last
    one clears it.

    Work of a device may still use the memory when the lease of an import ends. In this case the allocation has a list
    `uses` (`xpushare.sharing.idle.Uses`). Ending the lease then makes a *use*: a lease that marks this process as a
    user of the entry, but not as a holder. The use is appended to the list, and the list is called. The call submits a
    callback to the device, which ends the use once the work is done.
    """

    def __init__(self, domain: Domain, entry: int, peer: Any, /) -> None: ...
    def end(self) -> None:
        """End the lease now, even if the object is still referenced. Only the first call has an effect."""

    def spend(self) -> None:
        """Use up the open that the lease has taken of an export with a limited number of them. Without this call, the
        lease gives it back when it ends.
        """
    @property
    def peer(self) -> Any: ...

PENDING: Final = 0
DONE: Final = 1
LOST: Final = 2

@final
class Slot:
    """An attachment of this process to one event. It ends when the object dies, or when `detach` is called.

    `signals` has the meaning that it has for `Event`: True if this object is going to signal, False if it only waits,
    and None if nothing is known.
    """

    def __init__(self, domain: Domain, index: int, signals: bool | None = None) -> None: ...
    @property
    def domain(self) -> Domain: ...
    @property
    def index(self) -> int: ...
    @property
    def address(self) -> int:
        """The address of the slot. Its first word is the event's value, which devices read and write."""

    @property
    def engine(self) -> int:
        """The address of the native structure. It is an argument of the C functions that are offered to other libraries
        (src/engine/outside.c).
        """

    @property
    def value(self) -> int: ...
    @property
    def pending(self) -> int: ...
    def state(self, point: int) -> int:
        """Return whether a point (the number of a signal) is PENDING, DONE or LOST. This does not check whether other
        processes have died.
        """

    def signal(self) -> int:
        """Signal the event from the host. Returns the point, which is the number of the signal. Raises ValueError while
        another signaller's point is pending.
        """

    def submit(self, queue: int, device: bool = False) -> tuple[int, int]:
        """Submit a point, which is the number of a signal, for queue number `queue` (unique in this process, not 0).
        Returns the point, and the point to wait for first, or 0.

        Raises ValueError for too many signallers or too many outstanding points. `device` sets the sticky flag.
        """

    def complete(self, point: int) -> None: ...
    def fail(self, cause: int) -> None:
        """Mark the signals that this process has submitted and not completed as lost. The cause is 2 or 3, as
        docs/events-protocol.md defines them.
        """

    def lose(self, point: int, cause: int) -> bool:
        """Mark a point (the number of a signal) of this process as lost, and all later points. No device may store the
        point any more. Returns False, and does nothing, while an earlier point is pending.
        """

    def owes(self) -> bool:
        """Return whether this process still has to complete a signal that was submitted."""

    def owes_next(self) -> bool:
        """Return whether this process has to complete the oldest of the submitted signals that are not complete."""

    def wait(self, point: int, timeout: float | None = None, spin: float = 50e-6) -> int:
        """Wait until the signal with the number `point` is done or lost. Returns DONE or LOST, or PENDING after the
        time-out. Deaths of other processes are noticed, even if the signal has not been submitted yet.
        """

    def pickled(self, until: int) -> None:
        """Record that a pickle of the event was made, whose opener may signal. The pickle is valid until the given time
        (CLOCK_MONOTONIC, nanoseconds).
        """

    def taken(self) -> None:
        """Record that a pickle was opened. Call this after making the opener's own Slot that may signal."""

    def blame(self) -> tuple[int, int]:
        """Return why the last lost signal was lost (a cause of docs/events-protocol.md), and the pid of the process
        that caused it. Return (0, 0) if no signal was lost.
        """

    def attached(self) -> list[int]:
        """Return the indices of the attached members, including dead ones."""

    def notify(self, point: int, token: int) -> bool:
        """Have `due()` report `token` (64 bits) once `point` is done or lost.

        If the point is done or lost already, this returns True and registers nothing. When the slot is detached, its
        tokens become due at once.
        """

    def notify_recovery(self, token: int) -> bool:
        """Register a token as `notify` does. The token is due once the next signal no longer counts as lost, because
        another process can signal the event again.
        """

    def cancel(self, token: int) -> None: ...
    def guard(self, point: int) -> None:
        """Guard a wait of a device for `point`, the number of a signal: watch the processes that have the event open,
        and release the device if the point is lost. The guard ends once the point is done or lost.

        Raises ValueError if the point is more than 2**20 - 1 ahead of the newest one. If a point is lost that no
        process has submitted, it is submitted and lost at once, as docs/events-protocol.md describes.
        """

    def released(self, point: int) -> bool:
        """Return whether a guard for `point` (see `guard`) has found the point lost, even if a later signal has
        completed since. Returns True only once for each guard.
        """

    def watch(self) -> None:
        """Make the warden (the native background thread) notice if a process that has the event open dies, for callers
        that poll `state`.
        """

    def detach(self) -> None:
        """Detach from the event. Waits of other threads end with ValueError, the tokens of `notify` become due, and
        guards (see `guard`) end. Signals that this process has submitted but not completed stay pending. Idempotent.
        """

# --- scopes -----------------------------------------------------------------------------------------------------------
@final
class Scopes:
    """A context manager factory: `with scopes():` makes pairs of driver calls around the block. Without a driver there
    are none.

    Inside, this thread disturbs no stream capture if `relaxed`. `place` is the context or the device that is current
    inside, by its number. None changes nothing. If a call fails, the calls before it are undone, and the exception that
    the driver's `failed` returns is raised.
    """

    def __init__(self, driver: Driver = ..., place: int | None = None, relaxed: bool = True) -> None: ...
    def __call__(self) -> Scope: ...

@final
class Scope:
    def __enter__(self) -> None: ...
    def __exit__(self, *_error: object) -> None: ...

# --- stream queues ----------------------------------------------------------------------------------------------------
def query(function: int, handle: int, /) -> int:
    """Call a driver's function that returns the state of `handle`. Return the driver's code."""

CAPTURED: Final = 1 << 32
"""A code of `StreamQueue`: another library is capturing the queue into a graph, so nothing can be queued."""
NOT_HELD: Final = 2 << 32
"""A code of `StreamQueue`: the device cannot wait for this point now, and operations cannot be held back, since another
library also uses the queue.
"""
SYSTEM: Final = 3 << 32
"""A code of `StreamQueue` from this number on is this number plus an errno: a system call of the relay or the warden
failed.
"""

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
    """The calls that native code makes to a vendor's driver, for all queues of the vendor. Every function returns an
    int, 0 for success.

    A step is `(address of the function, (argument, ...))`, with at most 10 arguments. An argument is a number or one of
    these names:

    - "queue": the handle of the queue
    - "address": the address of the event's word on the device
    - "point" and "point_low": the number of the signal, and its lower 32 bits
    - "function" and "data": the host function and its argument
    - "out" and "made": the address of a 64-bit temporary, and the value that an earlier step has put there
    - "status_out": the address of an int
    - `("int_at", number)`: the address of an int with that number, at most one in a step

    A recipe is a step, or a tuple of at most 4 steps. After a step that fails, the rest is skipped, except for steps
    that end with True, which clean up the temporary if there is one. The code of a recipe is that of its first failure.

    `host` makes the queue call "function", as `void f(void *data)`. If `host_data` is 2, the call is `void f(event, int
    status, void *data)`, and a negative status loses the point. `store` writes "point" to "address". `wait` waits until
    the word at "address" is at least "point". A driver without these two completes points by host functions, and its
    queues hold waits. `captured` returns whether an adopted queue is being captured.

    `relay` prepares a relay thread each time before the thread makes calls of a queue. The settings that it makes stay
    in effect.

    `budget` is how many queues of ordering "shared" may wait in the device at a time for points that may never come. It
    counts all queues with these calls.

    `copy` and each of `fills` is one step, for commands that need no Python (`StreamQueue.own`). The arguments of
    `copy` are "to", "from" and "nbytes". The fills are for patterns of 1, 2 and 4 bytes. A fill writes "times" patterns
    to "to". The pattern is "value", or the byte at the address "value_at", which stays valid. `works` is true if there
    are a copy and a fill of bytes.

    `wait_bits` of 32 means that the device compares only the lower half of the word, so the queue holds waits that this
    cannot decide. `store_bits` of 32 means that the device stores only the lower half, so host functions store the
    upper half.
    """

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
    """A device's in-order queue. Native code calls functions of the driver by address, without the GIL, one at a time,
    in the order in which points (numbers of signals) are submitted. Any of them may block.

    `ordering` selects which waits the device does: all of them ("device"), none ("held"), or some ("shared"). "shared"
    is for queues that share hardware, so that a wait blocks other queues. The device then waits only for points that
    are certain: a queue of this process has handed the signal to the driver, and nothing can delay it forever. It waits
    for any other point only if this queue already has such a wait, or fewer than `budget` queues have one.

    The queue holds all other waits, and every operation after them. A relay thread hands them to the driver once the
    point is done or lost. Points are still submitted at once. Signals behind a lost wait never reach the driver. They
    are lost, with the same cause.

    `adopted` means that another library also uses the queue. Then the queue holds nothing.

    A code is 0, the driver's error, or one of the constants above. If the driver refuses a held operation, the queue
    has failed. The operations held behind it are dropped. Their points are lost (cause 2) once earlier points of their
    events are settled. From then on, `signal` and `wait` return the code of the failure. Points that the driver has
    received may still complete. Call `Slot.fail` if the code says that they cannot. In a forked child, every method
    raises ValueError.
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
        """Return CAPTURED while the adopted queue is being captured, otherwise 0 or the driver's error."""

    def idle(self, function: int, unfinished: int, handle: int, scopes: Scopes, /) -> bool | None:
        """Return whether the queue holds back no operation, and the driver reports no unfinished work. This calls
        `check`, and then the driver's `int function(uint64 handle)`, which returns 0 if all work is done and
        `unfinished` if it is not. Both calls are made inside one scope of `scopes`.

        Return None if one of the calls fails, or if entering or leaving the scope fails. The caller then repeats the
        calls one by one to find the error.
        """

    def wait(self, slot: Slot, address: int, point: int) -> int:
        """Make later work wait until the point is done or lost. If the point is done or lost already, nothing is
        queued.

        If the device has to wait, this calls `Slot.guard`, whose ValueError is passed on. If the point is lost later,
        all signals that were queued after this call are lost, too, before the device continues. So are signals that are
        queued afterwards, until `told` is called. `Slot.released` reports each lost wait once, even if the device did
        not wait.
        """

    def lost(self, slot: Slot) -> None:
        """Record that this queue was told to wait for a signal that is lost already. Until `told` is called, signals of
        this queue are lost, too, with the cause of the last lost signal of the slot. A queue that another library also
        uses ignores this, since the users of that library cannot learn of lost signals.
        """

    def told(self, place: int) -> None:
        """Record that the user has been told of every lost signal that the queue waited for up to `place`."""

    def signal(self, slot: Slot, address: int) -> tuple[int, int, int]:
        """Signal the slot's event from this queue. Calls `check`, and `Slot.submit` with this queue's number. Then
        queues the `store` of the point, or a `host` function that completes the point if a late store could do harm.
        Returns the point (the number of the signal), `after` and the code.

        A point of 0 means that the check failed, and nothing was submitted. If `after` is not 0, that point has to come
        first: wait for it, then call `finish`. A queue that holds work does that by itself, and `after` is 0. Raises
        ValueError as `Slot.submit` does.
        """

    def finish(self, slot: Slot, point: int) -> int:
        """Queue a host function that completes the point of a `signal` that returned `after`. The slot's memory stays
        mapped until the function has run.
        """

    def submit(self, calls: Sequence[tuple[int, ...]]) -> tuple[int, int]:
        """Queue other work as calls of driver functions. Each call is `(address of the function, argument, ...)`. They
        are made in order, until one fails. Some of the calls may be marks: commands such as cuEventRecord, whose
        completion shows that earlier work has finished.

        Returns the place in the queue and 0, or the number of the call that failed and its code. The calls are held
        while anything is held. The memory behind their arguments must stay valid until the driver has received the call
        (`handed`), or longer if the driver requires it. This works even after the queue has failed, so a mark can still
        show when earlier work has finished.
        """

    def own(self, slot: Slot, address: int) -> None:
        """Let native code outside this module queue commands from now on. It uses the address `engine`. Each command
        signals a point of this slot, which nobody else signals.
        """

    @property
    def spent(self) -> bool:
        """Whether `own` has to be called (again). This is so if no slot is set, or if a signal of this queue on the
        slot was lost. A later signal on the same slot would make the lost one look complete.
        """

    @property
    def engine(self) -> int:
        """The address of this queue in native code."""

    @property
    def place(self) -> int:
        """The place of the newest operation in the queue: a number that grows with each operation."""

    def unsure(self, more: bool) -> None:
        """With True, record that later work waits for something that this module does not manage, such as another
        library's event, and that may never happen. Until the same call with False, this queue counts in the `budget`,
        and its signals are not certain.
        """

    @property
    def handed(self) -> int:
        """The place of the last operation that the driver has received, or that was dropped after a failure (see
        `failure`). Do not query a mark (see `submit`) before the driver has received it.
        """

    @property
    def held(self) -> int:
        """How many operations are held back."""

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until no operation is held back. Returns False after the time-out. Python's signal handlers run during
        the wait.
        """

    def failure(self) -> tuple[int, int] | None:
        """Return the place of the held operation that the driver refused, and the driver's code. Return None if there
        is none. Part of that operation may have been done, but no operation behind it.
        """

    def late(self, slot: Slot) -> bool:
        """Return whether the driver may still store points of this queue that were lost. Until `landed` is called or
        the slot is detached, the warden (the native background thread) corrects the event's value after such a store.
        """

    def landed(self, slot: Slot) -> bool: ...

# Relay threads hand held operations to drivers, without ever taking the GIL. The first one starts when a queue first
# holds an operation, and more start while a driver blocks one. A forked child has none.
def library_loads() -> int:
    """Return how many libraries this process has loaded so far."""

def relay(calls: Sequence[tuple[int, ...]]) -> None:
    """Have a relay thread make these driver calls, which have the form of `StreamQueue.submit`. Used for calls that
    release objects, since they may block. Failures are ignored.
    """

def close_relay(timeout: float | None = 1.0) -> bool:
    """Stop the relay's threads. Held operations stay held until a thread starts again. Returns False if a driver still
    blocks a thread at the time-out. That thread does nothing more once the driver returns. Call this at exit, before
    memory that held calls use is freed. Does nothing in a sub-interpreter.
    """

# --- the warden -------------------------------------------------------------------------------------------------------
# One native thread per process, which blocks all signals and never takes the GIL. It serves descriptors, watches
# pidfds, reaps the dead, and reports due tokens. It starts at `serve`, or at the first wait, notify or guard that has
# to sleep. A forked child has none until it starts its own: mutexes are held across the fork, and the child's copies of
# the listening socket, the epoll and the notification fd are closed.
def serve(table_address: int, table_fd: int, domain: Domain, file: bytes | None = None) -> None:
    """Serve this process's table to importers. Listens on the abstract socket that docs/layout.md describes and, if
    possible, on a socket at the path `file`.

    A process serves one table at a time. Serving the same table again changes nothing.
    """

DUPLICATE: Final[int]
"""The address of an `OnDemand` function that duplicates descriptors of this process: its objects are their numbers."""

def notification_fd() -> int:
    """Return an eventfd of this process that is readable while `due()` has tokens, for event loops."""

def due() -> list[int]:
    """Return the tokens whose points are done or lost, each once, and clear the notification."""

def start_warden() -> bool:
    """Start the warden, the native background thread, unless it runs. Returns whether it runs now."""

def close_warden() -> None:
    """Stop the warden thread and close its descriptors, including the listening socket, at interpreter exit.
    Idempotent.

    The next call that needs the thread starts it again. `notification_fd` stays open.
    """

GROUP_MEMBERS: int
GROUP_VERSION: int
GROUP_LIFE: int
GROUP_HOME: int
GROUP_CHANNEL: int
GROUP_MAKE: int
GROUP_JOIN: int
GROUP_LOOK: int
HOME_PLACES: int
PLACE_OVER: int
PLACE_ALONE: int
PLACE_SHARED: int

class Group:
    """This process's membership in a group: the processes that share a channel (kind GROUP_CHANNEL), or the locks and
    atomics that one of them has made (GROUP_HOME). docs/channels-protocol.md describes groups.

    `memory` is the group's memory, and `fd` the descriptor of its file, which stays open as long as the memory is
    mapped. `how` is GROUP_MAKE for new memory with room for `members` processes, GROUP_JOIN, or GROUP_LOOK to read the
    memory without becoming a member. Raises OSError: ENOSPC if there is no room for another process, EEXIST if this
    process is a member already. Raises ValueError if the memory is something else, or of another version.
    """

    def __init__(self, fd: int, memory: memoryview, kind: int, how: int, members: int = 1024) -> None: ...
    def close(self) -> None:
        """Leave the group. Idempotent."""

    @property
    def member(self) -> int:
        """The number of this process in the group."""

    @property
    def fd(self) -> int: ...
    @property
    def inode(self) -> tuple[int, int]:
        """The device and inode of the memory's file."""

    @staticmethod
    def home_nbytes() -> int:
        """Return the size of the memory of a home."""

    def begin(self, kind: int, initial: int, /) -> tuple[int, int]:
        """Begin a place for a lock (kind 1), an atomic (2) with that number, or a channel (3), in a group that this
        process has made. Returns its number and generation. This process is attached to it. Raises OSError (ENOSPC) if
        the group is full.
        """

    def attach(self, place: int, /) -> None:
        """Show the other members that this process opens a place. Its handle is in the file by then."""

    def state(self, place: int, generation: int, kind: int, /) -> int:
        """Return PLACE_OVER if the place has ended, PLACE_ALONE if no other living member has it open, or
        PLACE_SHARED.
        """

    def end(self, place: int, generation: int, /) -> bool:
        """End a place, unless another living member has it open. Returns whether it has ended. If not, this process
        stays attached. The caller has the lock on the name's file.
        """

    def detach(self, place: int, /) -> None:
        """Let go of a place, which others keep."""

    def own(self, place: int, /) -> int:
        """Return how many objects this process has at a place, 0 if the group is closed."""

    def pid(self, member: int, /) -> int:
        """Return the pid of a member: 0 if the pid is not visible from here, -1 if there is no such member."""

    def set_handle(self, which: int, handle: bytes, /) -> None:
        """Tell the members by which handle others open the group's memory (0) or the slots (1) from this process."""

    def handles(self) -> list[tuple[int, bytes, bytes]]:
        """Return the number and the two handles of each living member that has told the first one."""

    @staticmethod
    def channel_nbytes(geometry: bytes, /) -> int:
        """Return the size of a channel's control words, or 0 if such a channel is impossible. `layout.GEOMETRY` packs
        the geometry.
        """

    def channel_begin(self, geometry: bytes, text: bytes, /) -> None:
        """Initialise new control words for a channel with this geometry. `text` is stored beside it (see
        `channel_geometry`).
        """

    def channel_geometry(self) -> tuple[bytes, bytes]:
        """Return the geometry and the text of a channel that another process began. Raises ValueError if its control
        words are not those of a channel.
        """

    def channel_move(self) -> None:
        """Make a channel's readers switch to the next channel of that name. Used if the memory of the slots has ended
        with the process that made it.
        """

    def channel_owner(self) -> int | None:
        """Return the pid of the process that has the channel's lock, 0 if it is not visible here, or None if no process
        has it.
        """

    def channel_survey(self) -> tuple[list[tuple[Any, ...]], int]:
        """Return an overview of a channel for people: the number, pid, role, cursor, missed, received, held and label
        of each end, and the seq of the next frame.
        """

class LockMember:
    """An object of this process at the place of a lock, to which the process is attached. If a callable is passed
    instead of a group, each use calls it to raise the reason. Acquiring the lock returns `held`, or `died` if its last
    owner died.
    """

    def __new__(cls, group: Group | Unread, place: int, held: object = None, died: object = None, /) -> Self: ...
    def release(self) -> None:
        """Release the lock. Any thread of the process may release it.

        Raises:
            InvalidArgumentError: This object does not hold the lock, or it is closed.

        Examples:
            >>> lock = xs.Lock()
            >>> lock.acquire().owner_died
            False
            >>> lock.release()
            >>> lock.close()
        """

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: object) -> None: ...
    def _acquire(self, timeout: float | None, /) -> Any:
        """Acquire the lock. Return `held` or `died`, or None after the time-out."""

    def _ticket(self) -> int:
        """Return a ticket for the calls of `_poll` of one wait."""

    def _poll(self, ticket: int, overtaken: bool, /) -> Any:
        """Try to acquire the lock, and return `held`, `died` or None. After None, the next change of a lock of this
        group is reported by its memory's file. With `overtaken`, no process may acquire the lock before this ticket.
        """

    def _give_up(self, ticket: int, /) -> None:
        """End a wait that did not acquire the lock. Has no effect after one that did."""

    def _leave(self) -> None: ...
    _place: int
    def _owner(self) -> int:
        """Return 1 + the number of the member that holds the lock, or 0 if no member does."""

class AtomicMember:
    """An object of this process at the place of an atomic. It is made as a `LockMember` is."""

    def __new__(cls, group: Group | Unread, place: int, /) -> Self: ...
    def add(self, n: int, /) -> int:
        """Add to the number.

        Args:
            n: The number to add.

        Returns:
            The number before.

        Raises:
            InvalidArgumentError: `n` is no signed number of 64 bits, or the object is closed.

        Examples:
            >>> with xs.Atomic(5) as number:
            ...     number.add(-2), number.load()
            (5, 3)
        """

    def load(self) -> int:
        """Return the number.

        Returns:
            The value after the last change by any process.

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
            InvalidArgumentError: `value` is no signed number of 64 bits, or the object is closed.

        Examples:
            >>> with xs.Atomic(5) as number:
            ...     number.store(7)
            ...     number.load()
            7
        """

    def _swap(self, old: int, value: int, /) -> bool: ...
    def _wait(self, value: int, timeout: float | None, /) -> bool:
        """Wait until the number differs from `value`. Returns False after the time-out."""

    def _leave(self) -> None: ...
    _place: int

CHANNEL_GOT: int
CHANNEL_WAIT: int
CHANNEL_OVER: int
CHANNEL_LOST: int
CHANNEL_NO_ROOM: int
CHANNEL_TWICE: int
CHANNEL_NO_WRITER: int
CHANNEL_SAID_END: int
CHANNEL_MOVED: int
CHANNEL_READERS_LEFT: int
CHANNEL_READERS_LOST: int
CHANNEL_SPARE: int
CHANNEL_TEXT: int

class ChannelEnd:
    """An end of a channel, which is a writer or a reader. The process is attached to place 0 of the channel's group.
    Raises OSError: ENOSPC if there is no room for another end, EBUSY if there is none for another writer, EAGAIN if a
    process has the channel's lock for long.

    `refuse(end, outcome, wanted, timeout)` raises the error of an outcome. `encode(end, meta)` returns the bytes that
    are sent with a frame. `signal(end, order)` returns the point (the number of a signal) that completes once the work
    on a frame is done, or 0 if there is none.
    """

    lost: int
    """A number that is added to `missed` of the frames that this reader receives. It counts frames that were lost in
    other ways than by overwriting.
    """
    seen: int
    """`missed` of the last frame that this reader received. `gap` of the next frame is counted from here."""

    def __new__(
        cls,
        group: Group,
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
    def member(self) -> int:
        """The number of the end."""

    @property
    def lost_pid(self) -> int: ...
    @property
    def dead_reader(self) -> int:
        """The pid of the last reader, if it died."""

    @property
    def arrays(self) -> list[Any] | None: ...
    def use_arrays(self, arrays: list[Any], buffers: bool, /) -> None:
        """Set the NumPy arrays that cover the slots. `__array__` returns views of them and, with `buffers`, so does the
        buffer protocol. Can be set once.
        """

    def loan(self, timeout: float | None, /) -> Any:
        """Return a new loan. It gets its slot at the beginning of its `with` block, which waits at most `timeout`
        seconds for a free slot.
        """

    def receive(self, timeout: float | None, /) -> Any:
        """Wait at most `timeout` seconds for the next frame, and return it. None waits forever."""

    def peek(self) -> int:
        """Return the outcome that `receive` would have now, without waiting or taking the frame. After this, the next
        change is reported by a write to the file of the group's memory.
        """

    def failed(self) -> Any: ...
    def finish(self) -> int: ...
    def write(self) -> int: ...
    def reads(self, slot: int, /) -> list[tuple[int, int]]:
        """Return the signals that must complete before the slot can be written, as (end, point) pairs. Until then,
        readers' devices may still use the slot.
        """

    def since(self, end: int, /) -> int:
        """Return a number that tells an end from others with the same number, or 0 if there is no such end."""

    def pid(self, end: int, /) -> int:
        """Return the pid of an end's process: 0 if it is not visible from here, -1 if there is no such end."""

    def event(self, end: int, /) -> bytes | None:
        """Return the handle of an end's event, if it has told one."""

    def set_event(self, handle: bytes, /) -> None:
        """Tell the handle of this end's event."""

    def unread(self) -> int:
        """Return how many frames of a channel this reader has missed or not received. Used when a new channel of the
        same name replaces the channel (see `channel_move`).
        """

    def count(self) -> tuple[int, int]:
        """Return the numbers of living readers and writers."""

    def leave(self) -> None: ...

_Loan = TypeVar("_Loan", bound="LoanBase")
_Frame = TypeVar("_Frame", bound="FrameBase")

class LoanBase:
    """A slot that a writer fills within a `with` block. The end of the block sends the slot."""

    meta: Any
    """Plain data that readers get with the frame. Set it before the end of the block."""

    @property
    def seq(self) -> int:
        """The number of the frame in the channel, from 1 on. It is 0 before the end of the block."""
    def __enter__(self: _Loan) -> _Loan: ...  # Jedi takes Self for this class
    def __exit__(self, *error: object) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return a view of the NumPy array over the slot. If the slot is no longer held, if there is no such array, or
        if a conversion or copy is requested, return the result of the subclass's `_converted(dtype, copy)`.
        """

    _end: Any
    _slot: int
    _made: Any
    """The array that was made over the slot, or None if there is none yet."""
    _order: Any
    """The order of a device's work on the slot, or None."""
    _text: bytes | None
    _open: int
    _nbytes: int
    """How many bytes of the slot were filled. 0 means all of them."""

class FrameBase:
    """A slot that a reader holds."""

    @property
    def seq(self) -> int:
        """The number of the frame in the channel, from 1 on."""

    @property
    def missed(self) -> int:
        """How many frames were overwritten before this reader saw them, since it opened the channel."""

    @property
    def gap(self) -> int:
        """How many frames were missed between this reader's previous frame and this one."""

    @property
    def time_ns(self) -> int:
        """The time at which the frame was sent, in nanoseconds of CLOCK_MONOTONIC."""

    @property
    def deliveries(self) -> int:
        """In mode "one", how often the frame has been delivered, including this delivery."""

    @property
    def writer(self) -> int:
        """The pid of the process that sent the frame, in that process's own pid namespace."""

    @property
    def closed(self) -> bool:
        """Whether the frame is closed."""

    def __enter__(self: _Frame) -> _Frame: ...  # Jedi takes Self for this class
    def __exit__(self, *error: object) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return a view of the NumPy array over the slot. If the slot is no longer held, if there is no such array, or
        if a conversion or copy is requested, return the result of the subclass's `_converted(dtype, copy)`.
        """

    _end: Any
    _slot: int
    _made: Any
    """The array that was made over the slot, or None if there is none yet."""
    _order: Any
    """The order of a device's work on the slot, or None."""
    _text: bytes | None
    _meta: bytes | None
    _nbytes: int
    _point: int
    """The number of the signal of the writer's event that completes the content of the frame, or 0 if the content is
    complete already.
    """
    _point_by: int
    """The member whose event `_point` refers to."""
    _since: int
    """The time at which that member has joined."""
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
