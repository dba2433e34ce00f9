"""Asking a driver in a child process: starting it in this one would make a later fork unsafe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, final

from xpushare._errors import XpuShareError
from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.stream.library import LibraryDriver

__all__ = ["Listed", "Listing", "ask_child", "ask_driver", "has_render_node", "tell"]

_DRM: Final = Path("/sys/class/drm")
_SECONDS: Final = 60.0
_ASK: Final = """
import sys
sys.path[:] = {path!r}
from {module} import {names}
from xpushare.adapters.stream.listing import tell
tell({make})
"""


@final
class Listing:
    """The devices of this process, from the driver once it runs, before that from a child of its own.

    `ask` asks the child, and says why there are no devices; `describe` makes a device of its ordinal and what its
    `listed()` says. The child is asked anew when one of the environment's `variables` has changed.
    """

    def __init__(
        self,
        driver: LibraryDriver[Any],
        variables: Sequence[str],
        describe: Callable[[int, Any], DeviceInfo],
        ask: Callable[[], tuple[list[DeviceInfo], str]],
    ) -> None:
        self._driver = driver
        self._variables = variables
        self._describe = describe
        self._ask = ask
        self._listed: tuple[list[str | None], list[DeviceInfo], str] | None = None

    def info(self, gpu: Any) -> DeviceInfo:
        return self._describe(gpu.ordinal, gpu.listed())

    def found(self) -> tuple[list[DeviceInfo], str]:
        """The devices by ordinals; and why there are none."""
        if self._driver.started:
            found = [self.info(gpu) for gpu in self._driver.gpus()]
            return found, "; ".join(self._driver.refused) or "the driver has no device"
        return self.asked()

    def asked(self) -> tuple[list[DeviceInfo], str]:
        """What the child says."""
        asked = [os.environ.get(name) for name in self._variables]
        if self._listed is None or self._listed[0] != asked:
            self._listed = (asked, *self._ask())
        return self._listed[1:]


class Listed:
    """The part of the driver contract that a `Listing` fills in."""

    listing: Listing

    def devices(self) -> list[DeviceInfo]:
        return list(self.listing.found()[0])

    def why_none(self) -> str:
        return self.listing.found()[1]


def ask_driver(vendor: str, module: str, names: str, make: str) -> dict[str, Any]:
    """What a driver says of its devices in a process of its own: {"devices": …}, else {"why": …}. `make` is the
    expression for the driver, of those names of the module.
    """
    return ask_child(_ASK.format(path=sys.path, module=module, names=names, make=make), vendor)


def tell(driver: LibraryDriver[Any]) -> None:
    """In the child: print what the driver says of its devices."""
    try:
        print(json.dumps({"devices": [gpu.listed() for gpu in driver.gpus()], "refused": driver.refused}))
    except XpuShareError as error:
        print(json.dumps({"why": str(error)}))


def ask_child(program: str, driver: str) -> dict[str, Any]:
    """The JSON object that a Python program prints, on either stream; {"why": …} where it prints none. {"crashed": …},
    too, if a signal ended it: the last line that it wrote to stderr.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if done.returncode < 0:
            why = f"the {driver} driver ended the process that asked it ({signal.Signals(-done.returncode).name})"
            return {"why": why, "crashed": (done.stderr.splitlines() or [""])[-1]}
        answer = json.loads(done.stdout or done.stderr)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return {"why": f"asking the {driver} driver in a process of its own failed: {error}"}
    return answer if isinstance(answer, dict) else {"why": f"the {driver} driver answered {answer!r}"}


def has_render_node(vendor: int) -> bool:
    """Whether the kernel has a GPU of that PCI vendor."""
    for file in _DRM.glob("renderD*/device/vendor"):
        try:
            if int(file.read_text(), 16) == vendor:
                return True
        except (OSError, ValueError):
            pass
    return False
