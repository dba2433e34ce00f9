"""Whoever takes part in keeping is killed at random moments; an oracle knows every version.

First publishers are killed while they publish with `keep=True`, over and over: the name then stands for the last
version that was done, or for the one under way, always whole. It may change from the first to the second until the
keeper has read what the dead publisher sent. Then heirs are killed while they find, own and publish
again what is kept. Then keepers are killed: a reader that owns the memory goes on, and has it kept by the next
keeper. After each kill the keeper has the memory of one version, and at the end nobody has any.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from soak.common import Soak, main, wait_until

__all__ = ["kill_all"]

NAME: Final = "model"
PARTS: Final = (1 << 12, 3 << 13, 1 << 16, 1 << 18)  # elements of each array, larger than what arrays share
SECONDS: Final = 60.0
_DONE: Final = 0  # of a journal: the last version that was published
_BEGUN: Final = 1  # the one under way
_READY: Final = 2


def _journal(path: Path, create: bool = False) -> Any:
    import numpy as np

    return np.memmap(path, "int64", "w+" if create else "r+", shape=(4,))


def _tree(value: int) -> dict[str, Any]:
    import numpy as np

    import xpushare as xs

    return {"value": value, "parts": [xs.array(np.full(number, value, "int32")) for number in PARTS]}


def _value(tree: Any) -> int:
    """The version that a tree is; -1 if it is not whole."""
    import numpy as np

    value = int(tree["value"])
    whole = all((np.asarray(part) == value).all() for part in tree["parts"])
    return value if whole and [part.size for part in tree["parts"]] == [*PARTS] else -1


def publish(path: Path, first: int) -> None:
    """Publish one version after the other."""
    import xpushare as xs

    journal = _journal(path)
    value = first
    while True:
        tree = _tree(value)
        journal[_BEGUN] = value
        xs.publish(NAME, tree, keep=True, replace=True)
        journal[_DONE] = value
        journal[_READY] = 1
        value += 1


def inherit(path: Path) -> None:
    """Find, own and publish again what is kept, over and over. It is the same version each time."""
    import xpushare as xs

    journal = _journal(path)
    while True:
        tree = xs.attach(xs.lookup(NAME, timeout=SECONDS), own=True)
        journal[_BEGUN] = _value(tree)
        xs.publish(NAME, tree, keep=True, replace=True)
        journal[_DONE] = _value(tree)
        journal[_READY] = 1


class _Run:
    def __init__(self, soak: Soak, folder: Path) -> None:
        self.soak = soak
        self.folder = folder
        self.longest = 0.0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["xpushare.arrays.keep", "numpy"])
        self._number = 0

    def victim(self, function: Any, *arguments: Any) -> tuple[Any, Any]:
        """A process that has done its work once, and goes on; and its journal."""
        self._number += 1
        path = self.folder / str(self._number)
        journal = _journal(path, create=True)
        process = self._context.Process(target=function, args=(path, *arguments), daemon=True)
        process.start()
        wait_until(lambda: journal[_READY] or not process.is_alive(), SECONDS)
        self.soak.check(journal[_READY], f"{function.__name__} ended with {process.exitcode}")
        return process, journal

    def kill(self, process: Any) -> None:
        time.sleep(self.soak.random.random() * 0.02)  # at any moment of a few rounds
        process.kill()
        process.join(SECONDS)

    def found(self) -> int:
        """The version that somebody finds now."""
        import xpushare as xs

        begin = time.monotonic()
        tree = xs.attach(xs.lookup(NAME, timeout=SECONDS))
        self.longest = max(self.longest, time.monotonic() - begin)
        return _value(tree)

    def newest(self, done: int, begun: int) -> int:
        """The version that stays after a publisher's death. Until the keeper has read the publisher's last message, the
        name may still change to the version under way.
        """
        found = self.found()
        self.soak.check(found in (done, begun), f"version {found} was found, {done} was done and {begun} begun")
        self.expect_memory_of(1)
        newest = self.found()
        self.soak.check(newest in (found, begun), f"version {newest} followed {found}, {begun} was begun")
        return newest

    def expect_memory_of(self, versions: int) -> None:
        """The keeper has the memory of so many versions, once it has seen who died."""
        expected = versions * len(PARTS)
        good = wait_until(lambda: _files(keeper_pid()) == expected, SECONDS)
        self.soak.check(good, f"the keeper has {_files(keeper_pid())} files of memory, not {expected}")


def keeper_pid() -> int:
    from xpushare.cli.keep import kept_rows

    rows = kept_rows()
    return int(rows[0]["keeper"]) if rows else 0


def _files(pid: int) -> int:
    """How many descriptors of memory a process has."""
    if not pid:
        return 0
    links = []
    for each in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{each}"))
        except FileNotFoundError:
            continue
    return sum("memfd:xpushare-memory" in each for each in links)


def kill_all(soak: Soak, folder: Path, publishers: int, heirs: int, keepers: int) -> str:
    """Kill so many of each. Returns what to say of it."""
    import numpy as np

    import xpushare as xs
    from xpushare.sharing import keeping

    run = _Run(soak, folder)
    newest = 0
    for _ in range(publishers):
        process, journal = run.victim(publish, newest + 1)
        run.kill(process)
        newest = run.newest(int(journal[_DONE]), int(journal[_BEGUN]))
    soak.say(f"{publishers} publishers killed over {newest} versions")
    for _ in range(heirs):
        process, journal = run.victim(inherit)
        run.kill(process)
        owned, left = int(journal[_BEGUN]), run.found()
        soak.check(owned == newest, f"an heir found version {owned}, not {newest}")
        soak.check(left == newest, f"an heir left version {left}, not {newest}")
        run.expect_memory_of(1)
    soak.say(f"{heirs} heirs killed")
    for _ in range(keepers):
        tree = xs.attach(xs.lookup(NAME, timeout=SECONDS), own=True)
        pid = keeper_pid()
        os.kill(pid, signal.SIGKILL)
        soak.check(wait_until(lambda pid=pid: _ended(pid), SECONDS), "the keeper has not ended")
        outlived = _value(tree)
        soak.check(outlived == newest, f"version {outlived} outlived the keeper, not {newest}")
        newest += 1
        tree["value"] = newest
        for part in tree["parts"]:
            np.asarray(part)[:] = newest
        xs.publish(NAME, tree, keep=True, replace=True)
        del tree, part
        found = run.found()
        soak.check(found == newest, f"version {found} was found, not {newest}, which was published again")
        run.expect_memory_of(1)
    soak.say(f"{keepers} keepers killed; the longest wait of a reader: {run.longest * 1e3:.0f} ms")
    with keeping.connected() as keeper:
        soak.check(keeper is not None, "there is no keeper at the end")
        if keeper is not None:
            keeper.drop(NAME)
            keeper.stop()
    xs.trim()
    soak.check(_files(os.getpid()) == 0, "this process has memory left")
    soak.check(not xs.published(), "a name is left")
    return f"{publishers}, {heirs} and {keepers} kills"


def _ended(pid: int) -> bool:
    """Whether a process waits to be collected by its parent."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _end_keeper() -> None:
    """End the keeper of a run that has failed: it would outlive this process."""
    from xpushare.common.errors import XpuShareError
    from xpushare.sharing import keeping

    with contextlib.suppress(XpuShareError), keeping.connected() as keeper:
        if keeper is not None:
            keeper.stop()


def run(soak: Soak) -> None:
    folder = Path(soak.settings.folder) / "journals"
    folder.mkdir()
    try:
        kill_all(soak, folder, soak.count(500, 8), soak.count(100, 4), soak.count(100, 4))
    finally:
        _end_keeper()
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


if __name__ == "__main__":
    sys.exit(main("keeper_kills", run))
