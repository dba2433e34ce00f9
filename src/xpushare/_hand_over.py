"""The hot path: `share` and `attach` of the common case, by one native call each.

What they do not know is None, and so is everything while a layer is on or the environment switches them off: then the
caller goes all of its way in Python, where everything is decided.
"""

from __future__ import annotations

import os
from typing import Final

from xpushare._array import SharedArray, order_of
from xpushare._array_handle import ArrayHandle, Parts, decode_dtype, encode_dtype, texts
from xpushare._device import Device
from xpushare._native import HandOver
from xpushare.adapters.base import Export, Form, Import
from xpushare.core.declare import layers_on
from xpushare.core.memory import Range, decided, prepared_by
from xpushare.core.resources import Allocation, End
from xpushare.sharing import identity, node
from xpushare.sharing.handle import Handle
from xpushare.sharing.peers import Opener
from xpushare.sharing.table import Exported, Prepared

__all__ = ["SWITCH", "attach", "off", "share"]

SWITCH: Final = "XPUSHARE_NATIVE_HAND_OVER"
off: Final[list[str]] = [SWITCH] if os.environ.get(SWITCH) == "0" else []
"""Why the long way is taken always. Empty: it is not."""

_native: Final = HandOver(
    SharedArray=SharedArray,
    ArrayHandle=ArrayHandle,
    Handle=Handle,
    Range=Range,
    Parts=Parts,
    Allocation=Allocation,
    Exported=Exported,
    End=End,
    Opener=Opener,
    Device=Device,
    Import=Import,
    Export=Export,
    Prepared=Prepared,
    decided=decided,
    texts=texts,
    memfd=Form.MEMFD,
    prepared_by=prepared_by,
    encode_dtype=encode_dtype,
    decode_dtype=decode_dtype,
    order_of=order_of,
)


def share(array: SharedArray) -> ArrayHandle | None:
    """What `xs.share` returns for an array of ours and no options."""
    table = node.current().table_if_any
    if table is None or off or layers_on:
        return None
    handle: ArrayHandle | None = _native.share(array, identity.sealing(), table)
    return handle


def attach(raw: bytes) -> SharedArray | None:
    """What `xs.attach` returns for the bytes of an array handle and no options."""
    if off or layers_on:
        return None
    array: SharedArray | None = _native.attach(raw, identity.sealing(), identity.boot_id(), node.current().peers)
    return array
