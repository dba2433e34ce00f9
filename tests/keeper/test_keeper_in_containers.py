"""One keeper a node: publisher, keeper and readers are in PID namespaces of their own, as in containers that have the
runtime folder in common.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from keepers import environment, keep, reachable, stop_keeper, values

from harness import Child, wait_until

NAMESPACES = ["unshare", "--pid", "--net", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc"]


def works() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False, timeout=10).returncode == 0


@pytest.mark.skipif(not works(), reason="needs unshare and the right to use it")
def test_each_in_a_container_of_its_own() -> None:
    command = [*NAMESPACES, sys.executable, "-m", "xpushare", "keep"]
    with subprocess.Popen(command, env=environment()) as keeper:
        wait_until(reachable, what="the keeper to begin")
        with Child(prefix=NAMESPACES) as publisher:
            first = publisher.call(keep, "weights", 1)
            publisher.kill()
        with Child(prefix=NAMESPACES) as reader:
            assert reader.call(values, "weights") == {1}
            with Child(prefix=NAMESPACES) as publisher:
                assert publisher.call(keep, "weights", 2, replace=True) > first
            assert reader.call(values, "weights") == {2}
        with Child(prefix=NAMESPACES) as heir:
            assert heir.call(values, "weights") == {2}
        stop_keeper()
        assert keeper.wait(30) == 0
