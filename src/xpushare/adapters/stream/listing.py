"""Asks a driver in a child process, since starting it in this process would make a later fork unsafe."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, final

from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.stream.driver import LibraryDriver
from xpushare.common.errors import XpuShareError

__all__ = ["Found", "Listed", "Listing", "ask_child", "ask_driver", "has_render_node", "tell", "trying"]

_DRM: Final = Path("/sys/class/drm")
_SECONDS: Final = 60.0
_MARK: Final = "xpushare is trying "
_TRYING: Final = re.compile(_MARK.encode() + rb"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
_ASK: Final = """
import sys
sys.path[:] = {path!r}
from {module} import {names}
from xpushare.adapters.stream.listing import tell
tell({make})
"""


class Found(NamedTuple):
    """The devices by ordinal, the reason if there are none, and the unusable devices: their uuid, name and reason."""

    devices: list[DeviceInfo]
    why: str
    refused: Mapping[str, str] = MappingProxyType({})


@final
class Listing:
    """The devices of this process. If this process has started the driver, the driver is asked. Otherwise a child
    process is asked.

    `ask` starts the child process and returns its answer. `describe` makes a `DeviceInfo` from a device's ordinal and
    from what `listed()` returns for the driver's device. The child process is asked again if one of the environment
    variables named in `variables` has changed.
    """

    def __init__(
        self,
        driver: LibraryDriver[Any],
        variables: Sequence[str],
        describe: Callable[[int, Any], DeviceInfo],
        ask: Callable[[], Found],
    ) -> None:
        self._driver = driver
        self._variables = variables
        self._describe = describe
        self._ask = ask
        self._listed: tuple[list[str | None], Found] | None = None

    def info(self, gpu: Any) -> DeviceInfo:
        return self._describe(gpu.ordinal, gpu.listed())

    def found(self) -> Found:
        if self._driver.started:
            return Found([self.info(gpu) for gpu in self._driver.gpus()], self._driver.why_none, self._driver.refused)
        return self.asked()

    def asked(self) -> Found:
        """Return the child process's answer."""
        asked = [os.environ.get(name) for name in self._variables]
        if self._listed is None or self._listed[0] != asked:
            self._listed = asked, self._ask()
        return self._listed[1]


class Listed:
    """Implements those methods of the driver contract that list devices, using a `Listing`."""

    listing: Listing

    def devices(self) -> list[DeviceInfo]:
        return list(self.listing.found().devices)

    def why_none(self) -> str:
        return self.listing.found().why

    def refused(self) -> list[str]:
        return list(self.listing.found().refused.values())


def ask_driver(vendor: str, module: str, names: str, make: str) -> dict[str, Any]:
    """Start a child process that asks a driver about its devices. Returns {"devices": …}, or {"why": …} on failure.
    `make` is a Python expression that creates the driver. The expression may use `names`, which are imported from
    `module`.
    """
    return ask_child(_ASK.format(path=sys.path, module=module, names=names, make=make), vendor)


def tell(driver: LibraryDriver[Any]) -> None:
    """Print, in the child process, what the driver reports about its devices."""
    try:
        print(json.dumps({"devices": [gpu.listed() for gpu in driver.gpus()]}), flush=True)
    except XpuShareError as error:
        print(json.dumps({"why": str(error)}), flush=True)


def trying(uuid: str) -> None:
    """Print, in the child process, the uuid of the device that is about to be tested."""
    os.write(2, f"{_MARK}{uuid}\n".encode())  # one call, so that output of the driver's threads cannot split the line


def ask_child(program: str, driver: str, seconds: float = _SECONDS) -> dict[str, Any]:
    """Run a Python program in a child process. Return the JSON object that it prints as a line on stdout or stderr,
    even if the process crashes afterwards. If the child prints no JSON object, return {"why": …}, with the device that
    the child last announced by `trying` under the key "trying".
    """
    failed = f"asking the {driver} driver in a process of its own failed: "
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program], capture_output=True, timeout=seconds, check=False
        )
        out, err = done.stdout, done.stderr
        if done.returncode < 0:
            why = f"the {driver} driver ended the process that asked it ({_signal_name(-done.returncode)})"
        elif out.strip():
            why = f"the {driver} driver answered {_last_line(out)}"
        else:
            why = failed + (_last_line(err) or "it said nothing")
    except subprocess.TimeoutExpired as error:
        out, err = error.stdout or b"", error.stderr or b""
        why = f"the {driver} driver did not answer within {seconds:g} s"
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {"why": f"{failed}{error}"}
    answer = _answer(out) or _answer(err)
    if answer is not None:
        return answer
    tried = _TRYING.findall(err)
    return {"why": why} | ({"trying": tried[-1].decode()} if tried else {})


def _answer(stream: bytes) -> dict[str, Any] | None:
    """Return the last line that is a JSON object, or None. Drivers may write other lines to the same stream."""
    for line in reversed(stream.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def _last_line(stream: bytes) -> str:
    return (stream.decode(errors="replace").strip().splitlines() or [""])[-1]


def _signal_name(number: int) -> str:
    return next((each.name for each in signal.Signals if each == number), f"signal {number}")


def has_render_node(vendor: int) -> bool:
    """Return whether the kernel has a GPU of that PCI vendor."""
    for file in _DRM.glob("renderD*/device/vendor"):
        try:
            if int(file.read_text(), 16) == vendor:
                return True
        except (OSError, ValueError):
            pass
    return False
