#!/usr/bin/env python3
"""Fuzz the messages to the keeper, guided by coverage, in a keeper of this process with a runtime folder of its own.

    tests/keeper/fuzz.py [--messages N] [--random] [OPTION OF LIBFUZZER...]

After each input, the clients leave. Then what is kept must be unchanged, and nothing may be left of the clients: no
descriptor, no export and no name. Needs atheris, which is not among the test dependencies, or `--random`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
_folder = tempfile.TemporaryDirectory(prefix="xpushare-fuzz-")
os.environ["XPUSHARE_RUNTIME_DIR"] = _folder.name

_MODULES = ("xpushare.sharing.keeping", "xpushare.sharing.naming", "xpushare.keeper.clients", "xpushare.keeper.process")
_STEPS = 24  # messages of one input
_CLIENTS = 3


class _Bytes:
    """Chance by the bytes of an input. After its end, everything is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def content(self, most: int) -> bytes:
        size = self.below(most + 1)
        found = self._data[self._at : self._at + size]
        self._at += size
        return found

    def below(self, most: int) -> int:
        size = 1 if most <= 256 else 4
        found = int.from_bytes(self._data[self._at : self._at + size], "little")
        self._at += size
        return found % most


class Fuzz:
    """The keeper, and what it keeps."""

    def __init__(self, messages: int) -> None:
        from hostile_messages import FACT, Talk, memory_file

        from xpushare.keeper import process
        from xpushare.sharing import identity, keeping, naming

        self.left = messages
        self.inputs = 0
        self._naming = naming
        identity.runtime_dir()
        lock = process._only_one()
        assert lock is not None
        self._keeper: Any = process.Keeper(process._listen("keeper"), lock, 0, 0.0)
        talk = Talk(self.turn)
        talk.say(keeping.FDS, None, [memory_file()])
        handle = talk.say(keeping.HOLD, json.dumps([FACT()]).encode(), [])
        assert handle is not None
        head = json.dumps(["precious", True, 1, False, None]).encode()
        assert talk.say(keeping.PUBLISH, head + b"\n" + handle, []) is not None
        talk.close()
        self.turn()
        self._before = self._state()

    def turn(self) -> None:
        """Do what `Keeper.run` does until nothing is left to do."""
        clients = self._keeper._clients
        while ready := clients._poll.poll(0):
            for number, _event in ready:
                clients.serve(number)
            clients.tend()

    def _state(self) -> tuple[Any, ...]:
        own = self._naming.names["precious"]
        rows = json.loads(self._keeper._list(None, []))
        for each in rows:
            each["since"] = 0
        exports = [bytes(each.handle) for each in self._keeper._table.exports()]
        number = len(os.listdir("/proc/self/fd"))
        with contextlib.suppress(FileNotFoundError):  # whose inode is the name's: it was not replaced
            return rows, os.lstat(own.path).st_ino, own.content(), exports, number, os.listdir(own.path.parent)
        raise AssertionError("the name is gone")

    def input(self, data: bytes) -> None:
        from hostile_messages import Talk, step

        chance = _Bytes(data)
        talks: list[Talk] = []
        for _ in range(_STEPS):
            if not chance:
                break
            at = chance.below(_CLIENTS)
            if at >= len(talks) or not talks[at].open:
                talks.append(Talk(self.turn))
                at = -1
            step(chance, talks[at])
            self.left -= 1
        for talk in talks:
            talk.close()
        self.turn()
        for name in [each for each in self._keeper._kept if each != "precious"]:
            self._keeper._forget(name)
        assert not self._keeper._stopped
        found = self._state()
        assert found == self._before, f"{found} is not {self._before}"
        self.inputs += 1
        if self.left <= 0:
            print(f"{self.inputs:,} inputs, nothing found", flush=True)
            _folder.cleanup()
            os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--random", action="store_true", help="random inputs, without coverage")
    arguments, others = parser.parse_known_args()
    if arguments.random:
        chance, fuzz = random.Random(), Fuzz(arguments.messages)
        while True:
            fuzz.input(chance.randbytes(chance.randrange(400)))
    import atheris

    with atheris.instrument_imports(include=[*_MODULES]):
        for name in _MODULES:
            importlib.import_module(name)
    fuzz = Fuzz(arguments.messages)
    atheris.Setup([sys.argv[0], "-max_len=400", "-len_control=0", *others], fuzz.input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
