"""Asking a driver in a child process: starting it in this one would make a later fork unsafe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

__all__ = ["ask_child", "has_render_node"]

_DRM: Final = Path("/sys/class/drm")
_SECONDS: Final = 60.0


def ask_child(program: str, driver: str) -> dict[str, Any]:
    """The JSON object that a Python program prints, on either stream; {"why": …} where it prints none."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
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
