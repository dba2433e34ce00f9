"""An array handle broadcast by MPI: every rank of a host works on the first one's array.

Starts itself under mpiexec. Needs mpi4py and an MPI: `pip install mpi4py mpich`, or Debian's mpich.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import xpushare as xs

RANKS = 3


def rank_main() -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert world.size == RANKS
    handle = None
    if world.rank == 0:
        array = xs.empty((RANKS, 1 << 20), "float32")
        handle = xs.share(array)
    raw = world.bcast(bytes(handle) if handle else None)  # lower case: any Python object, here a few hundred bytes
    with xs.attach(raw) as shared:
        np.asarray(shared)[world.rank] = world.rank + 1
    world.Barrier()
    if handle:
        assert (np.asarray(array) == np.arange(1, RANKS + 1)[:, None]).all(), "a rank wrote to a copy"
        handle.close()
        print(f"{RANKS} ranks filled {array.nbytes >> 20} MiB in place after a broadcast of {len(raw)} bytes")


def main() -> None:
    beside = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if mpiexec is None:
        sys.exit("this example needs mpiexec: pip install mpi4py mpich")
    subprocess.run([mpiexec, "-n", str(RANKS), sys.executable, __file__, "rank"], check=True, timeout=60)


if __name__ == "__main__":
    rank_main() if sys.argv[1:] == ["rank"] else main()
