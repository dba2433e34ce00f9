"""What the hostile process does: each attack is a method, drawn at random, with random numbers of its own.

It may do what `docs/security.md` says that such a peer can: write to everything that is writable to it, lie in its own
table and handles, talk nonsense to sockets, and leave things in the runtime folder.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import random
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import xpushare as xs
from soak.forked import Served
from xpushare import _native
from xpushare.sharing import node
from xpushare.sharing.handle import FIELDS, fields_of, keyed_hash, pack

__all__ = ["ATTACKS", "Attacker"]

_AT = _native.LAYOUT
_CHOSEN = (0, 1, 2, 3, 1 << 16, 1 << 20, (1 << 20) - 1, 1 << 21, 1 << 31, 1 << 32, 1 << 43, 1 << 63, (1 << 64) - 1)
_WORDS = [name for name in _AT if name.startswith("slot.") and name != "slot.size"]
_SLOTS = 24  # the first ones: those in use
_MEMBERS = 16


class Attacker(Served):
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._random = random.Random(0)
        self._kept: list[Any] = []
        self._exports: list[xs.ipc.Handle] = []
        self._domain: Any = None
        self._victims: list[bytes] = []  # cookies

    def meet(self, handles: list[tuple[str, bytes]]) -> bool:
        """Open what the victim shares, as anybody may; False if an earlier attacker has made that impossible."""
        for kind, raw in handles:
            try:
                opened = xs.attach(raw) if kind == "array" else getattr(xs.ipc, kind).open(raw)
            except xs.XpuShareError:
                continue
            self._kept.append(opened)
            if kind == "memory":
                self._memory = opened
                known = node.current().peers.known(fields_of(xs.ipc.Handle(raw)).cookie)
                assert known is not None
                self._domain = known.domain
        return self._domain is not None

    def aim(self, handles: list[bytes]) -> None:
        """Whose sockets to talk to."""
        self._victims = [fields_of(xs.ipc.Handle(raw)).cookie for raw in handles]

    def share(self) -> list[tuple[str, bytes]]:
        """Exports of its own, honest until now, and forged ones."""
        memory, event = xs.malloc_device(1 << 16, "native_cpu:0"), xs.Event("native_cpu:0", enable_ipc=True)
        pages, numbers = xs.PhysicalMemory(1 << 16, "native_cpu:0", enable_ipc=True), xs.empty(1000)
        shared = xs.share(numbers)
        self._kept += [memory, event, pages, numbers, shared]
        self._exports = [xs.ipc.memory.get(memory), xs.ipc.event.get(event), xs.ipc.physical_memory.get(pages)]
        found = [(handle.kind, bytes(handle)) for handle in self._exports]
        return [*found, ("array", bytes(shared)), *(("memory", raw) for raw in self._forged())]

    def attack(self, token: int, names: list[str], seed: int) -> None:
        """One after another; answers with what did not even work here."""
        self._random.seed(seed)

        def attack() -> dict[str, str]:
            failed = {}
            for name in names:
                try:
                    ATTACKS[name](self)
                except (OSError, xs.XpuShareError, ValueError) as error:
                    failed[name] = repr(error)
            return failed

        self.report(token, attack)

    # --- memory that others map, too ----------------------------------------------------------------------

    def _number(self) -> int:
        pick = self._random
        return pick.choice(_CHOSEN) if pick.random() < 0.6 else pick.getrandbits(64)

    def _write(self, address: int, content: bytes) -> None:
        memoryview(_native.Span(address, len(content), False, self._domain))[:] = content

    def _slot(self) -> int:
        return int(self._domain.address + _AT["commons.slots"] + self._random.randrange(_SLOTS) * _AT["slot.size"])

    def words(self) -> None:
        for _ in range(self._random.randrange(1, 40)):
            name = self._random.choice(_WORDS)
            wide = name in ("slot.value", "slot.pending", "slot.lost", "slot.roster", "slot.blame", "slot.facts")
            number = self._number()
            if name == "slot.pending" and self._random.random() < 0.5:  # one that looks right
                number = self._random.randrange(1 << 10) << 21 | self._random.randrange(1 << 11)
            content = struct.pack("<Q", number) if wide else struct.pack("<I", number & 0xFFFFFFFF)
            self._write(self._slot() + _AT[name], content)

    def whole_slots(self) -> None:
        for _ in range(4):
            self._write(self._slot(), self._random.choice((bytes(256), b"\xff" * 256, self._random.randbytes(256))))

    def storm(self) -> None:
        """Never stop writing, for a while: what others read and compare changes all the time."""
        slot, end = self._slot(), time.monotonic() + 0.05
        names = [self._random.choice(("slot.value", "slot.pending", "slot.lost", "slot.roster")) for _ in range(2)]
        while time.monotonic() < end:
            for name in names:
                self._write(slot + _AT[name], struct.pack("<Q", self._number()))
            self._write(slot + _AT["slot.waiters"], bytes(8))  # nobody waits

    def roles(self) -> None:
        for _ in range(8):
            at = self._domain.address + _AT["commons.roles"] + self._random.randrange(_SLOTS) * 256
            self._write(at + self._random.choice((0, 128)), self._random.choice((b"\xff", b"\0")) * 128)

    def members(self) -> None:
        for _ in range(8):
            at = self._domain.address + _AT["commons.members"] + self._random.randrange(_MEMBERS) * _AT["member.size"]
            pid = self._random.choice((0, 1, os.getpid(), os.getppid(), 0x7FFFFFFF, 0xFFFFFFFF))
            record = struct.pack("<IIQQ", self._random.randrange(3), pid, self._number(), self._number())
            self._write(at, record + self._random.choice((b"\x1b[2J" * 10, bytes(40), b"\xff" * 40)))

    def every_member(self) -> None:
        """Everybody is there, and means to signal."""
        for member in range(_AT["commons.member_count"]):
            self._write(self._domain.address + _AT["commons.members"] + member * _AT["member.size"], b"\1\0\0\0")
        self._write(self._slot() + _AT["slot.attached"], b"\xff" * 128)
        self.roles()

    def header(self) -> None:
        self._write(self._domain.address + _AT["commons.slots_used"], struct.pack("<II", *self._two()))

    def _two(self) -> tuple[int, int]:
        return self._number() & 0xFFFFFFFF, self._number() & 0xFFFFFFFF

    def holders(self) -> None:
        entry = self._random.randrange(16)
        self._write(
            self._domain.address + _AT["commons.holders"] + entry * 128, self._random.choice((b"\xff", b"\0")) * 128
        )
        self._write(self._domain.address + _AT["commons.opens"] + entry * 4, struct.pack("<I", self._two()[0]))

    def memory(self) -> None:
        with memoryview(self._memory) as view:
            view[:] = self._random.randbytes(len(view))

    # --- what the kernel lends -----------------------------------------------------------------------------

    def bell(self) -> None:
        """Fill it, drain it, make it block."""
        bell = self._domain.bell
        os.set_blocking(bell, self._random.random() < 0.5)
        with contextlib.suppress(BlockingIOError):
            if not os.get_blocking(bell):
                for _ in range(3):
                    os.write(bell, struct.pack("<Q", (1 << 64) - 2))
                for _ in range(1000):
                    os.read(bell, 8)

    def locks(self) -> None:
        """Be everybody who is not there yet, or whoever reaps anybody."""
        what = self._random.choice(("commons.life", "commons.reap"))
        how = self._random.choice((fcntl.LOCK_EX, fcntl.LOCK_UN))
        for member in self._random.sample(range(1, 64), 40):
            if member != self._domain.member:
                with contextlib.suppress(OSError):
                    fcntl.lockf(self._domain.fd, how | fcntl.LOCK_NB, 1, _AT[what] + member)

    # --- its own table and handles -------------------------------------------------------------------------

    def table(self) -> None:
        """Lie in the table, and go on lying."""
        table = node.current().table()
        for _ in range(self._random.randrange(1, 12)):
            handle = self._random.choice(self._exports)
            at = table.address + _AT["table.header"] + fields_of(handle).entry * _AT["entry.size"]
            if self._random.random() < 0.8:
                name = self._random.choice([each for each in _AT if each.startswith("entry.") and each != "entry.size"])
                content = struct.pack("<Q", self._number())[: self._random.choice((4, 8))]
                at += _AT[name]
            else:
                at, content = table.address + self._random.randrange(4096 - 64), self._random.randbytes(16)
            memoryview(_native.Span(at, len(content), False, table))[:] = content

    def _forged(self) -> list[bytes]:
        """Sealed with the key; of exporters that are not there, or that are files of the wrong kind."""
        own = {name: getattr(fields_of(self._exports[0]), name) for name, _code in FIELDS}
        wrong = os.memfd_create("xpushare-table")  # not sealed
        os.ftruncate(wrong, _AT["table.size"])
        reading, writing = os.pipe()
        self._kept += [wrong, reading, writing]
        found = []
        for fd in (wrong, reading, own["table_fd"] + 1, 0, 1 << 20, self._domain.fd):
            cookie = self._random.choice((own["cookie"], secrets.token_bytes(16)))
            found.append({**own, "table_fd": fd, "cookie": cookie})
        found.append({**own, "nbytes": 1 << 62, "exposed_nbytes": 1 << 62})
        found.append({**own, "entry": 200_000})
        answering = secrets.token_bytes(16)
        self._answer_at(answering)
        found.append({**own, "cookie": answering, "pid_namespace": 1})
        return [body + keyed_hash(body) for body in (pack(**each) for each in found)]

    def _answer_at(self, cookie: bytes) -> None:
        """An exporter's socket that answers anything."""
        path = Path(os.environ["XPUSHARE_RUNTIME_DIR"], f"socket-{cookie.hex()}")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(str(path))
        listening.listen(8)
        self._kept.append(listening)
        null = os.open("/dev/null", os.O_RDWR)
        pick = random.Random(cookie)

        def serve() -> None:
            while True:
                with listening.accept()[0] as there, contextlib.suppress(OSError):
                    there.recv(16_384)
                    count = pick.randrange(6)
                    head = pick.choice((b"XPSR", b"XPSR", pick.randbytes(4)))
                    reply = head
                    for _ in range(pick.choice((1, 1, 2, 300))):
                        reply += struct.pack("<III", pick.choice((0, 0, pick.getrandbits(32))), count, 4)
                    fds = array.array("i", [pick.choice((null, self._domain.fd, listening.fileno()))] * count)
                    if pick.random() < 0.7:
                        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if count else []
                        there.sendmsg([reply[: pick.choice((len(reply), 16, 4))]], control)
                    if pick.random() < 0.3:
                        time.sleep(1)

        threading.Thread(target=serve, daemon=True).start()

    # --- sockets --------------------------------------------------------------------------------------------

    def _connected(self) -> socket.socket:
        cookie = self._random.choice(self._victims)
        there = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        there.setblocking(False)
        folder = Path(os.environ["XPUSHARE_RUNTIME_DIR"], f"socket-{cookie.hex()}")
        there.connect(self._random.choice((str(folder), b"\0xpushare/" + cookie.hex().encode())))
        return there

    def malformed(self) -> None:
        for _ in range(20):
            with contextlib.suppress(OSError), self._connected() as there:
                cookie = self._random.choice(self._victims)
                numbers = self._random.randrange(4), cookie, *self._two(), self._number(), self._random.randbytes(16)
                good = struct.pack("<4sI16sIIQ16s", b"XPSQ", *numbers)
                other = self._random.randbytes(56)
                many = good + good[24:] * self._random.choice((1, 252, 253))
                packet = self._random.choice((good, good[:20], good * 3, many, b"", other, bytes(60_000)))
                fds = array.array("i", [self._domain.bell] * self._random.randrange(1, 200))
                there.sendmsg([packet], self._random.choice(([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])))

    def flood(self) -> None:
        """Take all places, and the backlog, and hold them."""
        for _ in range(150):
            with contextlib.suppress(OSError):
                self._kept.append(self._connected())

    def early(self) -> None:
        for _ in range(50):
            with contextlib.suppress(OSError):
                self._connected().close()

    # --- the runtime folder ---------------------------------------------------------------------------------

    def names(self) -> None:
        """Leave what is not a name under names that others use, and the locks that others take."""
        folder = Path(os.environ["XPUSHARE_RUNTIME_DIR"], "names")
        path = folder / f"{self._random.choice(('one', 'two', 'three'))}"
        kind = self._random.choice(("fifo", "folder", "link", "garbage", "huge", "handle", "gone", "dead", "temporary"))
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, OSError):
            if kind == "gone" or self._random.random() < 0.3:
                path.unlink()
        with contextlib.suppress(FileExistsError):
            if kind == "fifo":
                os.mkfifo(path, 0o600)
            elif kind == "folder":
                path.mkdir()
            elif kind == "link":
                path.symlink_to("/dev/zero")
            elif kind != "gone":
                path = folder / f".new-{self._random.random()}" if kind == "temporary" else path
                file = open(path, "xb")  # noqa: SIM115
                self._kept.append(file)
                content = bytes(self._exports[0]) if kind in ("handle", "dead") else self._random.randbytes(300)
                file.write(content)
                file.flush()
                if kind == "huge":
                    file.truncate(1 << 40)
                held = {"dead": 1, "temporary": 1}.get(kind, 0)  # the publisher's byte, or that of whoever removes it
                fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, held)

    def junk(self) -> None:
        folder = Path(os.environ["XPUSHARE_RUNTIME_DIR"])
        with contextlib.suppress(FileExistsError):
            name = f"socket-{self._random.getrandbits(128):032x}"
            self._random.choice((os.mkfifo, os.mkdir))(folder / name, 0o600)

    def numbers(self) -> None:
        """Arrays of another shape than the handle says cannot be; elements of any value can."""
        for each in self._kept:
            if isinstance(each, xs.SharedArray):
                np.asarray(each)[:] = np.nan


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    name: getattr(Attacker, name)
    for name in (
        *("words", "whole_slots", "storm", "roles", "members", "every_member", "header", "holders", "memory", "bell"),
        *("locks", "table", "malformed", "flood", "early", "names", "junk", "numbers"),
    )
}
