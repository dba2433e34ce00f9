"""`python tests/faults`: see `mutants`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])

from faults.mutants import main  # noqa: E402

sys.exit(main())
