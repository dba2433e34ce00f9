"""What the package adds to bare calls on the host, as ratios in one run: python -m benchmarks.floors [--only NAME …]

The options are those of `xpushare bench`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from benchmarks import faces, futex, imports, virtual
from xpushare.bench import Scenario
from xpushare.cli import bench

SCENARIOS: Final[dict[str, Scenario]] = {
    "faces": faces.faces,
    "futex": futex.futex,
    "import_time": imports.import_time,
    "map_unmap": virtual.map_unmap,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floors", description=__doc__)
    bench.add_arguments(parser)
    parser.set_defaults(parser=parser)
    return bench.run(parser.parse_args(), SCENARIOS)


if __name__ == "__main__":
    sys.exit(main())
