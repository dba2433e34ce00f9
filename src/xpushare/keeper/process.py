"""The keeper process. It holds file descriptors of memory and the metadata of their exports. It does not open any
driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NoReturn, final

from xpushare._native import End, Exported, NameLock
from xpushare.adapters.base import Form, Hardware
from xpushare.common import system
from xpushare.common.errors import (
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
    XpuShareError,
)
from xpushare.common.fds import OwnedFd, close_all
from xpushare.common.leaving import Stage, at_leave
from xpushare.keeper.clients import Client, Clients, Handed, report, unharmed
from xpushare.keeper.files import Files, record_holder, take_lock
from xpushare.keeper.store import Store
from xpushare.sharing import identity, keeping, layout, naming, node
from xpushare.sharing.handle import Handle, fields_of
from xpushare.sharing.keeping import Earlier, Fact
from xpushare.sharing.table import Owned, expect_lasting

__all__ = ["Keeper", "serve"]

_SUCCESSOR: Final = re.compile(rf"{keeping.NAME}\.\d{{1,20}}")
_HAND_OVER: Final = 10.0  # seconds within which a successor has to answer
_TEXT_MOST: Final = 4096  # bytes of a name
_FACT_MOST: Final = 1024  # bytes of JSON for one export
_HEAD_MOST: Final = 1 << 20  # bytes of JSON in front of a message
_REST: Final = 0.2  # seconds after a failure
_RELEASED: Final = 0.005  # seconds between two attempts to take the lock of a keeper that ends
_KINDS: Final = ("memory", "physical_memory")


@final
class _Kept:
    """Metadata of one version of a published name that the keeper holds."""

    __slots__ = ("begun", "nbytes", "objects", "pid", "version", "who")

    def __init__(self, pid: int, nbytes: int, objects: int, earlier: Earlier | None) -> None:
        self.pid = pid if earlier is None else earlier.pid
        self.who = _command(pid) if earlier is None else earlier.who
        # By a clock that nobody sets. It also stands still while the machine is suspended, so nothing expires by that.
        now = time.monotonic()
        self.begun = now if earlier is None else min(earlier.begun, now)
        self.nbytes = nbytes
        self.objects = objects
        self.version = 0 if earlier is None else earlier.version

    def since(self) -> float:
        """Return when the version was published, by the clock of the wall as it is set now."""
        return time.time() - (time.monotonic() - self.begun)


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read(1 << 10).rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
    return "".join(c if c.isprintable() else "?" for c in text)


@final
class Keeper:
    """The state of the keeper process: the versions that it holds, and its connections to clients."""

    def __init__(
        self, listening: socket.socket, lock: NameLock | None, max_bytes: int, ttl: float, store: Store | None = None
    ) -> None:
        """Make the state of a new keeper. `lock` is the lock of the running keeper, held until the process ends. It is
        None while another keeper holds it. For `max_bytes` and `ttl`, 0 means no limit.
        """
        self.listening = listening
        self.lock = lock
        self._store = store
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._table = node.current().table()
        self._kept: dict[str, list[_Kept]] = {}  # the newest version first
        self._clients = Clients(listening, self._answer, self._give_up)
        self._files: Files | None = None  # once this is the running keeper
        self._stopped = self._filling = False
        self.replaced = False  # a successor has all that was kept
        self._answers: dict[bytes, Callable[[Client, list[OwnedFd]], bytes]] = {
            keeping.FDS: self._take_fds,
            keeping.HOLD: self._hold,
            keeping.PUBLISH: self._publish,
            keeping.LIST: self._list,
            keeping.DROP: self._drop,
            keeping.STOP: self._stop,
            keeping.REPLACE: self._replace,
            keeping.FORMATS: lambda _client, _fds: str(keeping.FORMAT).encode(),
        }

    def run(self, until: keeping.Connection | None = None) -> None:
        """Serve clients until the keeper is stopped. If `until` is a connection to a previous keeper, accept the
        versions of that keeper until the connection becomes readable. No limits apply to these versions.
        """
        if until is not None:
            self._filling = True
            self._clients.predecessor = until.pid
            self._clients.watch(until.fileno())
        else:
            assert self.lock is not None
            self._files = Files(self._clients, self.lock, self._listen)
        while not self._stopped:
            try:
                pauses = (self._pause(), self._files and self._files.pause())
                ready = self._clients.wait(min((each for each in pauses if each is not None), default=None))
                if until is not None and until.fileno() in ready:
                    self._filling = False
                    self._clients.predecessor = None
                    self._clients.unwatch(until.fileno())
                    return
                for number in ready:
                    if not self._stopped:  # other clients that asked notice the end of their connection
                        self._clients.serve(number)
                self._clients.tend()
                self._expire()
                if self._files is not None:
                    self._files.tend(ready)
            except Exception as error:  # there is too little memory even for this
                report("serving", error)
                time.sleep(_REST)

    def _listen(self) -> None:
        self.listening = _listen(keeping.NAME)
        self._clients.listen_at(self.listening)

    # --- time to live

    def _pause(self) -> float | None:
        """Return the seconds until the next version expires, or None if no version expires."""
        if not self._ttl or not self._kept:
            return None
        oldest = min(each[0].begun for each in self._kept.values())
        return max(oldest + self._ttl - time.monotonic(), 0.0)

    def _expire(self) -> None:
        if self._ttl:
            now = time.monotonic()
            expired = [name for name, each in self._kept.items() if each[0].begun + self._ttl <= now]
            self._each("dropping", expired, self._forget)
            if expired:
                self._sync()

    @staticmethod
    def _each(doing: str, names: Iterable[str], do: Callable[[str], object]) -> None:
        """Call `do` with each name. A failure for one name is reported, and the others follow."""
        for name in names:
            with unharmed(f"{doing} {name!r}"):
                do(name)

    # --- clients

    def _answer(self, client: Client, op: bytes, fds: list[OwnedFd]) -> bytes:
        act = self._answers.get(op)
        if act is None:
            raise InvalidArgumentError("there is no such operation")
        return act(client, fds)

    def _give_up(self, client: Handed) -> None:
        """Withdraw the exports of memory that a client has handed over but not published."""
        self._withdraw([each.handle for each in client.exports.values()])
        client.exports = {}
        close_all(client.fds)
        client.fds = []
        client.count = 0

    def _withdraw(self, handles: list[Handle]) -> None:
        self._table.withdraw_all(handles, layout.REASON_PUT)

    # --- operations

    def _take_fds(self, client: Client, fds: list[OwnedFd]) -> bytes:
        self._clients.expect_descriptors(client, fds)
        client.count += len(fds)
        client.fds += fds
        fds.clear()
        return b""

    def _hold(self, client: Client, fds: list[OwnedFd]) -> bytes:
        most = _FACT_MOST * (1 + len(client.fds))
        return b"".join(self._take(client, lambda: json.loads(keeping.body_of(fds[0], most))))

    def _take(self, client: Handed, read: Callable[[], list[Any]]) -> list[bytes]:
        """Export the memory that a client has handed over, by the facts that `read` returns. Returns the handles. After
        a failure, the client has to hand the descriptors over again.
        """
        dropped = len(client.fds)
        try:
            facts = [Fact(*each) for each in read()]
            counts = [each.fds for each in facts]
            if not facts or any(type(each) is not int or each < 1 for each in counts) or sum(counts) != len(client.fds):
                raise InvalidArgumentError("there are more or fewer descriptors than the exports need")
            exports = self._exports(client, facts)
            self._expect_room(exports)
            handles = self._table.export(exports)
            client.exports.update(zip([bytes(handle) for handle in handles], exports, strict=True))
            dropped = 0
            return [bytes(handle) for handle in handles]
        finally:
            close_all(client.fds)  # the descriptors that are not kept
            client.fds = []
            client.count -= dropped

    def _exports(self, client: Handed, facts: list[Fact]) -> list[Exported]:
        fds = iter(client.fds)
        made: list[Exported] = []
        for fact in facts:
            taken = [OwnedFd(next(fds)) for _ in range(fact.fds)]
            owned = _owned(fact, taken)
            assert owned.exporter is not None
            template = self._table.prepare(fact.kind, owned.exporter, owned.export(), self._table.new_object())
            made.append(Exported(template, owned, None, fact.offset, fact.length, fact.read_only))
        return made

    def _expect_room(self, more: list[Exported]) -> None:
        """Raise `OutOfMemoryError` if these exports exceed the keeper's memory limit. The keeper never drops older
        memory to make room.
        """
        if not self._max_bytes or self._filling:
            return
        before = _nbytes(self._table.exports())
        after = _nbytes([*self._table.exports(), *more])
        if after > self._max_bytes:
            raise OutOfMemoryError(
                f"this takes {after - before} bytes, and {before} of the {self._max_bytes} that it may keep are taken: "
                "drop what is not needed (xpushare keep --list, --drop NAME), or start it with more --max-bytes"
            )

    def _publish(self, client: Client, fds: list[OwnedFd]) -> bytes:
        head, _, message = keeping.body_of(fds[0], keeping.BODY_MOST).partition(b"\n")
        if len(head) > _HEAD_MOST:
            raise InvalidArgumentError("the beginning of the message is too long")
        name, replace, versions, mine, told = json.loads(head)
        if not isinstance(name, str) or type(versions) is not int or not 1 <= versions <= naming.VERSIONS_MOST:
            raise InvalidArgumentError("that is not a name, or not a number of versions")
        if told is not None and client.pid != self._clients.predecessor:
            raise InvalidArgumentError("only the keeper that is being replaced passes earlier versions on")
        self._clients.expect_descriptor(client)
        parts = [(None, message)] if told is None else list(_parts([Earlier(*each) for each in told], message))
        version = self._keep(client, name, bool(replace), versions, parts, client.pid if mine else None)
        return str(version).encode()

    def _keep(
        self, client: Handed, name: str, replace: bool, versions: int, parts: Sequence[tuple[Earlier | None, bytes]],
        before: int | None,
    ) -> int:  # fmt: skip
        """Publish memory that a client has handed over, under one name. `parts` has the message of each version, the
        newest first, and its metadata if another keeper held it before. Returns the version number.
        """
        kept = [self._prepared(client, *each) for each in parts]

        def export(new: naming.Published) -> None:
            for at, (each, part, exports) in enumerate(kept):
                made = new if not at else naming.Published(new.path, self._withdraw)
                made.handle, made.version = part, each.version
                handles = [one.handle for one in exports]
                made.exports.append(handles)  # the exports end with the version, even if the call fails
                for one in exports:
                    del client.exports[bytes(one.handle)]
                client.count -= _descriptors(exports)
                if at:
                    new.older.append(made)

        found = [*[each for each, _, _ in kept], *self._kept.get(name, [])]
        try:
            found[0].version = naming.publish(name, replace, versions, export, self._withdraw, before)
        except InvalidArgumentError:
            self._give_up(client)
            if name in self._kept and not replace:
                raise InvalidArgumentError(
                    f"{name!r} is kept already: publish it with replace=True, or xpushare keep --drop {name}"
                ) from None
            raise
        self._kept[name] = found
        del found[len(_versions(name)) :]
        self._sync()
        return found[0].version

    # --- systemd's store

    def restore(self) -> None:
        """Publish the versions again that an earlier keeper process has left in systemd's store."""
        assert self._store is not None
        self._filling = True
        names: dict[str, tuple[Handed, list[tuple[Earlier, bytes]]]] = {}
        for state, fds in self._store.received():
            handed, parts = names.setdefault(state["name"], (Handed(state["pid"]), []))
            handed.fds = fds
            message = bytes.fromhex(state["message"])
            try:
                handles = self._take(handed, partial(state.__getitem__, "facts"))
                message = keeping.moved(message, b"".join(handles))
            except Exception as error:
                report(f"{state['name']!r} from the store", error)
                self._give_up(handed)
                continue
            parts.append((Earlier(state["version"], state["pid"], state["who"], state["begun"], len(message)), message))
        for name, (handed, parts) in names.items():
            try:
                if parts:
                    self._keep(handed, name, True, len(parts), parts, None)
            except Exception as error:  # another process may have published the name meanwhile
                report(f"{name!r} from the store", error)
                self._give_up(handed)
        self._filling = False
        self._sync()
        self._store.ready()

    def _sync(self) -> None:
        """Update systemd's store, if there is one, to contain the versions that this keeper holds."""
        if self._store is None or self._filling:
            return
        with unharmed("systemd's store"):  # the version stays kept as long as this process lives
            exports = {bytes(each.handle): each for each in self._table.exports()}
            self._store.sync(
                {
                    (name, kept.version): partial(_state, name, kept, published, exports)
                    for name, versions in self._kept.items()
                    for kept, published in zip(versions, _versions(name), strict=True)
                }
            )

    @staticmethod
    def _prepared(client: Handed, earlier: Earlier | None, message: bytes) -> tuple[_Kept, bytes, list[Exported]]:
        exports = _exports_of(message, client.exports)
        return _Kept(client.pid, _nbytes(exports), len(exports), earlier), message, exports

    def _list(self, _client: Client, _fds: list[OwnedFd]) -> bytes:
        rows = [
            {
                "name": name, "version": each.version, "nbytes": each.nbytes, "objects": each.objects,
                "publisher": each.pid, "command": each.who, "since": int(each.since()), "keeper": os.getpid(),
            }
            for name, (each, *_older) in sorted(self._kept.items())
        ]  # fmt: skip
        return json.dumps(rows).encode()

    def _drop(self, _client: Client, fds: list[OwnedFd]) -> bytes:
        name = keeping.body_of(fds[0], _TEXT_MOST).decode()
        if name not in self._kept:
            raise InvalidArgumentError(f"{name!r:.200} is not kept: xpushare keep --list shows what is")
        self._forget(name)
        self._sync()
        return b""

    def _forget(self, name: str) -> None:
        self._kept.pop(name)
        naming.unpublish(name)

    def _replace(self, client: Client, fds: list[OwnedFd]) -> bytes:
        """Hand all versions to a new keeper, and stop. First all memory is handed over, so that a failure changes
        nothing. Then the names follow one by one.
        """
        name = keeping.body_of(fds[0], _TEXT_MOST).decode()
        if not _SUCCESSOR.fullmatch(name):
            raise InvalidArgumentError("that is not the name of a successor's socket")
        successor = keeping.connect(name, _HAND_OVER)
        if successor is None:
            raise InvalidArgumentError("nobody listens there")
        with keeping.Connection(successor, _HAND_OVER) as to:
            if to.pid != client.pid:
                raise InvalidArgumentError("the process that listens there is not the one that asks")
            # If the successor dies, or may not keep so much, this keeper continues.
            with End(self._each, "taking back", self._kept, naming.taken_back):
                self._hand_all_over(to)
        self._each("leaving", self._kept, naming.taken_over)
        self._kept.clear()
        self._sync()
        self.replaced = self._stopped = True
        return b""

    def _hand_all_over(self, to: keeping.Connection) -> None:
        exports = {bytes(each.handle): each for each in self._table.exports()}
        todo = {
            name: [self._hand_over(to, *each, exports) for each in zip(kept, _versions(name), strict=True)]
            for name, kept in self._kept.items()
        }
        for name, versions in todo.items():
            to.publish_kept(name, versions)

    @staticmethod
    def _hand_over(
        to: keeping.Connection, kept: _Kept, published: naming.Published, exports: dict[bytes, Exported]
    ) -> tuple[Earlier, bytes]:
        """Hand the memory of a version to the new keeper. Returns the version's metadata, and its message with the new
        keeper's handles.
        """
        facts, held = _facts(published, exports)
        message = keeping.moved(published.handle, b"".join(to.hold(facts, held)))
        return Earlier(kept.version, kept.pid, kept.who, kept.begun, len(message)), message

    def _stop(self, _client: Client, _fds: list[OwnedFd]) -> bytes:
        self._stopped = True
        if self._store is not None:
            with unharmed("systemd's store"):
                self._store.sync({})
        return b""


def _facts(published: naming.Published, exports: dict[bytes, Exported]) -> tuple[list[Fact], list[OwnedFd]]:
    """Return the metadata of a version's exports, and the file descriptors of its memory."""
    facts: list[Fact] = []
    held: list[OwnedFd] = []
    for handle in published.exports[0]:
        export: Any = exports[bytes(handle)]
        owned: Owned = export.source
        what, fields = owned.export(), fields_of(handle)
        assert owned.exporter is not None
        facts.append(
            Fact.of(handle.kind, owned.exporter, what, len(owned.fds), fields.offset, fields.nbytes, handle.read_only)
        )
        held += owned.fds
    return facts, held


def _state(
    name: str, kept: _Kept, published: naming.Published, exports: dict[bytes, Exported]
) -> tuple[dict[str, Any], list[OwnedFd]]:
    """Return the data from which a later keeper process can restore a version, and the file descriptors of the
    version's memory.
    """
    facts, held = _facts(published, exports)
    state = {
        "name": name, "version": kept.version, "pid": kept.pid, "who": kept.who, "begun": kept.begun,
        "facts": facts, "message": bytes(published.handle).hex(),
    }  # fmt: skip
    return state, held


def _versions(name: str) -> list[naming.Published]:
    """Return the versions of a name, the newest first."""
    newest = naming.names[name]
    return [newest, *newest.older]


def _parts(told: list[Earlier], messages: bytes) -> Iterator[tuple[Earlier, bytes]]:
    at = 0
    for each in told:
        yield each, messages[at : at + each.nbytes]
        at += each.nbytes


def _owned(fact: Fact, fds: list[OwnedFd]) -> Owned:
    """Check an export that was handed over, and return the object that owns its memory in the keeper."""
    form = Form(fact.form)
    expect_lasting(form, len(fds))
    if fact.kind not in _KINDS or len(fact.backend.encode()) > 15:
        raise InvalidArgumentError("that is not an export of memory")
    if not (0 < fact.nbytes <= fact.exposed_nbytes and 0 <= fact.offset <= fact.offset + fact.length <= fact.nbytes):
        raise InvalidArgumentError("an export's sizes contradict each other")
    inode = 0
    if form is Form.MEMFD:
        system.check_memfd(fds[0].number, fact.exposed_nbytes)
        inode = system.fstat(fds[0].number).st_ino
    return Owned(fds, fact.export(inode), Hardware(fact.backend, fact.uuid, fact.pci, fact.driver_uuid))


def _descriptors(exports: Iterable[Any]) -> int:
    """Return how many file descriptors of memory these exports have."""
    return sum(len(each.source.fds) for each in exports)


def _nbytes(exports: list[Any]) -> int:
    """Return the size of the memory behind these exports, counting each memfd once."""
    found: dict[object, int] = {}
    for each in exports:
        what = each.source.export()
        found[what.inode or id(each.source)] = what.exposed_nbytes
    return sum(found.values())


def _exports_of(message: bytes, held: dict[bytes, Exported]) -> list[Exported]:
    """Return the exports whose handles are in the message. Raises `InvalidHandleError` if one of them was not handed
    over, or the message contains events.
    """
    handles = message
    if len(message) != keeping.HANDLE_NBYTES:
        head = layout.head_of(message)
        handles = message[layout.MESSAGE.size : layout.MESSAGE.size + head["memory"] * keeping.HANDLE_NBYTES]
        if head["events"] or keeping.moved(message, handles) != message:
            raise InvalidHandleError("the message has events")
    size = keeping.HANDLE_NBYTES
    found = [held.get(handles[at : at + size]) for at in range(0, len(handles), size)]
    exports = [each for each in found if each is not None]
    if len(exports) < len(found) or not found or len({each.generation for each in exports}) < len(found):
        raise InvalidHandleError("the message does not fit the memory that was handed over")
    return exports


def _terminated(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def serve(ready: int, max_bytes: int, ttl: float, replace: bool = False) -> int:
    """Run as this user's keeper, and return the exit status. `ready` is a pipe (-1 for none). Once the keeper accepts
    connections, it writes "ready" to the pipe. If it cannot start, it writes the reason. With `replace`, it takes over
    from the running keeper. Without `replace`, it returns 3 if a keeper is already running.
    """

    def tell(text: str) -> None:
        if ready >= 0:
            os.write(ready, text.encode())
            os.close(ready)

    try:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        before = keeping.connect() if replace else None
        identity.runtime_dir()  # makes the folder
        lock = _only_one() if before is None else None
        if before is None and lock is None:
            tell("ready")
            return 3
        store = Store.of_service() if ready < 0 else None
        name = keeping.NAME if before is None else f"{keeping.NAME}.{os.getpid()}"
        listening = _listen(name)
        for number in signal.SIGTERM, signal.SIGINT:
            signal.signal(number, _terminated)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as file:
            file.write("xpushare-keeper")
        keeper = Keeper(listening, lock, max_bytes, ttl, store)
        if store is not None:
            keeper.restore()
        if before is not None:
            _take_over(keeper, before, name)
    except (OSError, XpuShareError) as error:
        tell(f"{error}")
        if ready < 0:
            raise
        return 1
    if ready >= 0:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        os.close(null)
    tell("ready")
    try:
        keeper.run()
    finally:
        if not keeper.replaced:
            at_leave(partial(_forget_socket, keeper.listening), Stage.WITHDRAW)
    return 0


def _only_one() -> NameLock | None:
    """Take the lock that only one keeper can hold. Returns None if another keeper holds it, or is about to take it over
    from a previous keeper.
    """
    lock = take_lock()
    there = None if lock is None else keeping.connect()
    if lock is not None and there is not None:
        there.close()
        lock.release()
        return None
    if lock is not None:
        record_holder()
    return lock


def _listen(name: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    with keeping.socket_at(name) as path:
        if os.path.lexists(path):
            os.unlink(path)
        listening.bind(path)
        listening.listen(128)
    return listening


def _take_over(keeper: Keeper, before: socket.socket, name: str) -> None:
    """Take over all memory and names from the running keeper. That keeper then ends, which releases its lock."""
    try:
        with keeping.Connection(before) as predecessor:
            predecessor.send_replace(name)
            keeper.run(predecessor)
            predecessor.replaced()
        with keeping.socket_at(name) as new, keeping.socket_at() as path:
            os.rename(new, path)
    finally:
        with keeping.socket_at(name) as new, contextlib.suppress(FileNotFoundError):
            os.unlink(new)  # the takeover has failed
    while (lock := take_lock()) is None:
        time.sleep(_RELEASED)
    keeper.lock = lock
    record_holder()


def _forget_socket(listening: socket.socket, _deadline: float) -> None:
    with keeping.socket_at() as path:
        if os.path.lexists(path):
            os.unlink(path)
    listening.close()
