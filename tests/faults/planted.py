"""Plants the fault that `XPUSHARE_PLANTED` names, when a process of the conformance suite imports this.

Besides the mutants there are some for the tests of the suite itself: "crash", "hang", "lacks:<aspect>" (every device
says so) and "unrefused:<aspect>" (and nothing refuses it).
"""

from __future__ import annotations

import os

from faults import MUTANTS
from faults.planting import TOOLS

name = os.environ["XPUSHARE_PLANTED"]
tool, _, aspect = name.partition(":")
if tool in TOOLS:
    TOOLS[tool](aspect)
else:
    MUTANTS[name].plant()
