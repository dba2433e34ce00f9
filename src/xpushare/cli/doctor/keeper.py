"""Check whether a keeper (`xpushare keep`) runs, and what could end it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xpushare.adapters.vendor import Check
from xpushare.common.errors import DeviceError, XpuShareError
from xpushare.common.texts import counted
from xpushare.sharing import keeping

__all__ = ["examine"]

_GROUP: Final = "keeper"
_SECONDS: Final = 3.0  # seconds that the keeper may take to answer
_UNITS: Final = (".scope", ".service")  # systemd's setting that ends all remaining processes of a unit that it stops


def _answers(pid: int) -> Check:
    """Ask the keeper for its list. `pid` is the process that holds the keeper's lock, or 0 if it is not visible."""
    process = f"process {pid}" if pid else "a process of another PID namespace"
    end = f"kill {pid}" if pid else "end it there"
    connection = keeping.connect(seconds=_SECONDS)
    if connection is None:
        why = f"{process} holds the keeper's lock, but nobody listens at its socket {keeping.lock_path()[:-5]}"
        return Check(_GROUP, "process", "fails", why, f"if it is not about to start or end: {end}")
    with keeping.Connection(connection, _SECONDS) as keeper:
        count = len(keeper.listed())
    return Check(
        _GROUP, "process", "works", f"{process} keeps what was published with keep=True ({counted(count, 'name')})"
    )


def _unit(pid: int | str) -> str:
    """Return the systemd unit that a process belongs to, or an empty string if it belongs to none."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
        path = file.read().splitlines()[-1].rpartition(":")[2]
    name = path.rpartition("/")[2]
    return name if name.endswith(_UNITS) else ""


def examine() -> Iterator[Check]:
    """Report whether a keeper runs, its pid and its systemd unit."""
    try:
        pid = keeping.keeper_pid()
        if pid is None:
            yield Check(_GROUP, "process", "note", "none runs: publish(keep=True) or `xpushare keep` starts one")
            return
        try:
            yield _answers(pid)
        except DeviceError as error:
            how = f"kill -CONT {pid} if it is stopped" if pid else "see whether it is stopped"
            yield Check(_GROUP, "process", "fails", f"process {pid or '?'} is the keeper: {error}", how)
        unit = _unit(pid) if pid else ""
    except (OSError, XpuShareError) as error:
        yield Check(_GROUP, "process", "skipped", f"it cannot be looked at: {error}")
        return
    if unit and not unit.startswith("xpushare"):
        why = f"the keeper belongs to {unit}, and ends when the service manager stops that"
        fix = "systemd-run --user --unit=xpushare-keeper xpushare keep (after xpushare keep --stop)"
        yield Check(_GROUP, "service", "limited", why, fix)
