"""Altered handles: random bits, lengths and fields, also sealed anew with the true key as a hostile peer can.

Each is refused with the error class that fits, or, where a field has no say once the exporter is known, opens exactly
the object that the rest of the handle names. No fd, no mapping, no crash; this process stays a member of its commons.
"""

from __future__ import annotations

import base64
import os
import struct
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from soak.common import DEVICE, Soak, describe_held, held, main

Kept = dict[str, Any]
_NBYTES = 3 * 4096 + 100  # no whole pages: there is a rest behind the object


def _export(kept: Kept) -> dict[str, bytes]:
    """One live handle of each sort, and two that have ended."""
    import xpushare as xs

    memory = kept["memory"] = xs.malloc_host(_NBYTES, DEVICE)
    memoryview(memory)[:] = bytes(range(256)) * 48 + bytes(100)
    other = kept["other"] = xs.malloc_host(_NBYTES, DEVICE)
    pages = kept["pages"] = xs.PhysicalMemory(2 << 20, DEVICE, enable_ipc=True)
    event = kept["event"] = xs.Event(DEVICE, enable_ipc=True)
    put = xs.ipc.memory.get(memory)
    xs.ipc.memory.put(put)
    found = {
        "memory": xs.ipc.memory.get(memory),
        "slice": xs.ipc.memory.get(memory.slice(256, 512)),
        "read_only": xs.ipc.memory.get(memory, read_only=True),
        "other": xs.ipc.memory.get(other),
        "physical_memory": xs.ipc.physical_memory.get(pages),
        "event": xs.ipc.event.get(event),
        "put": put,
    }
    return {name: bytes(handle) for name, handle in found.items()}


def _commons_fd(kept: Kept) -> int:  # noqa: ARG001
    from xpushare.sharing import node

    return node.current().table().domain.fd


def _members_alive(kept: Kept) -> list[int]:  # noqa: ARG001
    from xpushare.sharing import node

    return [pid for _index, pid, _since, alive in node.current().table().domain.members() if alive]


def _idle(kept: Kept) -> None:
    """A bystander: nothing but a live process."""
    kept["idle"] = True


# The fields and the classes that refuse an altered one. "opened" is allowed where the field only helps to find the
# exporter, who is known by its cookie, or says how much a peer could reach.
_IDENTITY = {"HandleExpiredError", "RouteError", "InvalidHandleError"}
_FIELDS: dict[str, set[str]] = {
    "version": {"InvalidHandleError"},
    "kind": {"InvalidHandleError"},
    "flags": {"InvalidHandleError", "HandleExpiredError"},
    "backend": {"InvalidArgumentError", "InvalidHandleError"},
    "device_uuid": {"InvalidArgumentError"},
    "boot_id": {"InvalidHandleError"},
    "pid_namespace": {*_IDENTITY, "opened"},
    "pid": {*_IDENTITY, "opened"},
    "table_fd": {*_IDENTITY, "opened"},
    "cookie": _IDENTITY,
    "generation": {"HandleExpiredError", "InvalidHandleError"},
    "entry": {"HandleExpiredError", "InvalidHandleError"},
    "reserved0": {"InvalidHandleError"},
    "nonce": {"InvalidHandleError"},
    "object": {"InvalidHandleError"},
    "offset": {"InvalidHandleError", "opened"},
    "nbytes": {"InvalidHandleError", "opened"},
    "exposed_nbytes": {"InvalidHandleError", "opened"},
    "net_namespace": {*_IDENTITY, "opened"},
    "reserved1": {"InvalidHandleError"},
}
_BEFORE_CONTACT = ("pid", "table_fd", "cookie")  # unknown exporter: these must be refused
_EDGES = (0, 1, 2, 3, 4095, 4096, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


class _Attacker:
    """Makes handles, true ones altered."""

    def __init__(self, soak: Soak, true: dict[str, bytes], pids: list[int], fds: list[int]) -> None:
        from xpushare.sharing.handle import FIELDS

        self._random = soak.random
        self._true = true
        self._pids = pids
        self._fds = fds
        self._at: dict[str, tuple[int, struct.Struct]] = {}
        at = 0
        for name, code in FIELDS:
            packer = struct.Struct("<" + code)
            self._at[name] = (at, packer)
            at += packer.size

    def read(self, raw: bytes, name: str) -> Any:
        at, packer = self._at[name]
        return packer.unpack_from(raw, at)[0]

    def seal(self, raw: bytes) -> bytes:
        from xpushare.sharing.handle import keyed_hash

        return raw[:224] + keyed_hash(raw[:224])

    def with_field(self, raw: bytes, name: str, value: Any) -> bytes:
        at, packer = self._at[name]
        changed = bytearray(raw)
        packer.pack_into(changed, at, value)
        return bytes(changed)

    def unsealed(self) -> bytes | str:
        """Bits, lengths, noise; as bytes or as text."""
        raw = self._random.choice(list(self._true.values()))
        how = self._random.randrange(4)
        if how == 0:
            changed = bytearray(raw)
            for _ in range(self._random.choice((1, 1, 1, 2, 3, 8, 64))):
                changed[self._random.randrange(len(raw))] ^= 1 << self._random.randrange(8)
            raw = bytes(changed) if changed != raw else raw[:-1]
        elif how == 1:
            length = self._random.choice((0, 1, 223, 224, 255, 257, 512, self._random.randrange(600)))
            raw = (raw * 3)[: length if length != len(raw) else 1]
        elif how == 2:
            raw = self._random.randbytes(256)
        else:
            raw = self.altered(raw, self._random.choice(list(_FIELDS)))
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode() if self._random.random() < 0.2 else raw

    def altered(self, raw: bytes, name: str) -> bytes:
        """Another value in one field; the seal stays the old one."""
        former = self.read(raw, name)
        while True:
            value = self._value(name, former)
            if value != former:
                return self.with_field(raw, name, value)

    def _value(self, name: str, former: Any) -> Any:
        pick = self._random
        if isinstance(former, bytes):
            if pick.random() < 0.3:  # another true handle's
                return self.read(pick.choice(list(self._true.values())), name)
            if name == "backend" and pick.random() < 0.5:
                return pick.choice((b"mock", b"cuda", b"", b"\xff" * 16, b"native_cpu\0x", b"NATIVE_CPU")).ljust(
                    16, b"\0"
                )
            return pick.randbytes(len(former))
        bits = 8 * self._at[name][1].size
        if name == "pid" and pick.random() < 0.7:  # others' processes are none of our business
            return pick.choice(self._pids)
        if name == "pid":
            return pick.choice((0, 2**22 + pick.randrange(2**20), 2**31 - 1, 2**31, 2**32 - 1))
        if name == "table_fd" and pick.random() < 0.8:
            return pick.choice((*self._fds, pick.randrange(64)))
        if pick.random() < 0.2:
            return self.read(pick.choice(list(self._true.values())), name)
        if pick.random() < 0.4:
            return (former + pick.choice((-1, 1, 4096, -4096, 2**20))) % 2**bits
        return pick.choice((*(edge for edge in _EDGES if edge < 2**bits), pick.getrandbits(bits)))


def run(soak: Soak) -> None:
    import xpushare as xs

    openers: dict[str, Callable[[Any], Any]] = {
        "memory": xs.ipc.memory.open,
        "physical_memory": xs.ipc.physical_memory.open,
        "event": xs.ipc.event.open,
    }
    total = soak.count(200_000, 4_000)
    with soak.worker() as exporter, soak.worker() as bystander:
        true = exporter.call(_export)
        bystander.call(_idle)
        commons = exporter.call(_commons_fd)
        attacker = _Attacker(soak, true, [exporter.pid, bystander.pid, os.getpid()], [commons])
        live = [name for name in true if name != "put"]
        wrong: Counter[str] = Counter()
        seen: dict[str, Counter[str]] = {}

        def attempt(
            handle: bytes | str, label: str, allowed: set[str], name: str, opener: Callable[[Any], Any]
        ) -> None:
            try:
                opened = opener(handle)
            except xs.XpuShareError as error:
                outcome = type(error).__name__
            except Exception as error:  # another's class: a defect, told below
                outcome = f"{type(error).__name__}({error})"
            else:
                outcome = "opened"
                if name in ("memory", "slice", "read_only", "other"):
                    if opened.read_only != (name == "read_only"):
                        outcome = f"opened with read_only={opened.read_only}"
                    elif opened.nbytes > _NBYTES:
                        outcome = f"opened with {opened.nbytes} bytes"
                opened.close()
            seen.setdefault(label, Counter())[outcome] += 1
            if outcome not in allowed:
                wrong[f"{label} of {name}: {outcome}"] += 1

        def kind_of(name: str) -> str:
            return name if name in openers else "memory"

        # 1. An exporter that this process does not know yet: a wrong identity must be refused.
        for _ in range(total // 20):
            name, field = soak.random.choice(live), soak.random.choice(_BEFORE_CONTACT)
            # With the true cookie the exporter's socket would answer, whatever the rest says: harmless, and a contact.
            raw = attacker.with_field(true[name], "cookie", soak.random.randbytes(16))
            if field != "cookie":
                raw = attacker.altered(raw, field)
            attempt(attacker.seal(raw), f"sealed, before contact, {field}", _IDENTITY, name, openers[kind_of(name)])
        for name in live:  # now it is known
            openers[kind_of(name)](true[name]).close()
        base = held()
        soak.check(os.getpid() in exporter.call(_members_alive), "the exporter does not see this process as a member")

        # 2. Not sealed anew.
        for _ in range(total * 3 // 5):
            name = soak.random.choice(list(openers))
            attempt(attacker.unsealed(), "not sealed anew", {"InvalidHandleError"}, name, openers[name])

        # 3. One field altered and sealed with the true key.
        for _ in range(total - total * 3 // 5 - total // 20):
            name, field = soak.random.choice(live), soak.random.choice(list(_FIELDS))
            raw = attacker.seal(attacker.altered(true[name], field))
            kind = kind_of(name)
            if field == "kind" and soak.random.random() < 0.5:  # through the opener that the new kind names
                kind = {1: "memory", 2: "physical_memory", 3: "event"}.get(attacker.read(raw, "kind"), kind)
            allowed = _FIELDS[field]
            if field in ("offset", "nbytes") and kind == "memory":
                inside = attacker.read(raw, "offset") + attacker.read(raw, "nbytes") <= _NBYTES
                allowed = {"opened"} if inside else {"InvalidHandleError"}
            if field == "backend" and kind == "event":  # of a device that is not here: the host opens it
                allowed = {*allowed, "opened"}
            attempt(raw, f"sealed, {field}", allowed, name, openers[kind])
        for _ in range(100):
            attempt(true["put"], "put", {"HandleExpiredError"}, "put", xs.ipc.memory.open)

        # 4. A hostile pair that reaches for the commons: an unknown cookie, and the commons' fd as the table's.
        for _ in range(20):
            raw = attacker.with_field(true["memory"], "cookie", soak.random.randbytes(16))
            attempt(attacker.seal(attacker.with_field(raw, "table_fd", commons)), "sealed, the commons as the table",
                    _IDENTITY, "memory", xs.ipc.memory.open)  # fmt: skip

        for label, outcomes in sorted(seen.items()):
            soak.say(f"{label}: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
        after = held()
        soak.say(f"before {base}; after {after}")
        problems = [f"{count} x {what}" for what, count in wrong.most_common(20)]
        if after.fds != base.fds:
            problems.append(f"fds {base.fds} -> {after.fds}: {describe_held()}")
        if after.shared != base.shared or after.mappings > base.mappings + 40:
            problems.append(f"mappings {base.shared}/{base.mappings} -> {after.shared}/{after.mappings}")
        if os.getpid() not in exporter.call(_members_alive):
            problems.append("this process is not a living member of the exporter's commons any more: its lock is gone")
        with xs.ipc.memory.open(true["memory"]) as memory, memoryview(memory) as view:
            if bytes(view[:256]) != bytes(range(256)):
                problems.append("the true handle opens other bytes")
        soak.check(not problems, "\n    ".join(["", *problems]))
    soak.say(f"{sum(sum(each.values()) for each in seen.values())} handles, each refused or harmless")


if __name__ == "__main__":
    sys.exit(main("handles", run))
