"""An array handle in an environment variable of a program that knows nothing else of this one."""

import os
import subprocess
import sys

import numpy as np

import xpushare as xs

PROGRAM = """
import os
import numpy as np
import xpushare as xs

with xs.attach(os.environ["SHARED_ARRAY"]) as array:
    values = np.asarray(array)
    print(array.shape, array.dtype, values.sum())
    values[:] = 0
"""


def main() -> None:
    array = xs.empty((3, 4), "int32")
    values = np.asarray(array)
    values[:] = 7
    with xs.share(array) as handle:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "SHARED_ARRAY": str(handle)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert done.stdout == "(3, 4) int32 84\n"
    assert not values.any()
    print(f"a text of {len(str(handle))} characters was enough: {done.stdout.strip()}")


if __name__ == "__main__":
    main()
