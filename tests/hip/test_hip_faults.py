"""Each call of the library fails in turn: an error of this package, nothing left behind, and the next try works."""

from __future__ import annotations

import pytest
from forwarding import Library

import xpushare as xs
from failing_calls import each_call_fails

DEVICE = "hip:0"
# What gives back: where the library refuses that, the object stays.
GIVE_BACK = {
    "hipFree",
    "hipIpcCloseMemHandle",
    "hipHostUnregister",
    "hipMemRelease",
    "hipMemAddressFree",
    "hipMemUnmap",
    "hipEventDestroy",
    "hipStreamDestroy",
}
NOT_SUPPORTED = 801
FAILS = {"plain": 30, "amd": 25}  # functions, at least


class Refusing(Library):
    """Its calls fail with an error that breaks no device."""

    def fail(self, function: str, nth: int = 1, code: int = NOT_SUPPORTED) -> None:
        super().fail(function, nth, code)


@pytest.mark.timeout(600)
def test_each_call_fails_in_turn() -> None:
    mode = "plain" if xs.Device(DEVICE).has("ext_oneapi_virtual_mem") else "amd"
    each_call_fails(DEVICE, Refusing, GIVE_BACK, FAILS[mode])
