"""What native code refuses to export."""

from __future__ import annotations

from typing import Any

import pytest

import xpushare as xs
from xpushare.sharing import node


@pytest.mark.parametrize(
    "arguments", [(), (1, 2), (1, 2, False, False), (1, None, False, False), (None, None, False, False)]
)
def test_what_is_no_range(arguments: Any) -> None:
    xs.share(xs.empty(1)).close()
    with pytest.raises(TypeError):
        node.current().table().of_range(*arguments)
