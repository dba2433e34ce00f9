"""The hot path: `share` and `attach` of the common case, by one native call each.

What they do not know is None, and so is everything while a layer is on or the environment switches them off: then the
caller goes all of its way in Python, where everything is decided.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from xpushare import arrays
from xpushare._array import SharedArray, order_of
from xpushare._array_handle import ArrayHandle, Parts, decode_dtype, dtypes, texts
from xpushare._device import Device
from xpushare._like import started
from xpushare._native import HandOver, Leaves, offer
from xpushare._system import boot_ids
from xpushare.adapters.base import Export, Form, Import
from xpushare.core.declare import layers_on
from xpushare.core.event import Opened, opened_on
from xpushare.core.memory import Range, decided, prepared_by
from xpushare.core.ordering import Order, current_mark, lasting, mark
from xpushare.core.pickles import Implicit
from xpushare.core.resources import Allocation, End, Timeline, release_slot, reopened
from xpushare.sharing.handle import Handle
from xpushare.sharing.identity import sealings
from xpushare.sharing.node import Node, here
from xpushare.sharing.peers import Opener, Peer, Peers, Turn
from xpushare.sharing.table import Exported, Table

__all__ = ["SWITCH", "attach", "attach_as", "export_all", "find", "find_all", "off", "open_all", "share"]

SWITCH: Final = "XPUSHARE_NATIVE_HAND_OVER"
off: Final[list[str]] = [SWITCH] if os.environ.get(SWITCH) == "0" else []
"""Why the long way is taken always. Empty: it is not."""

_kit: Final[dict[str, Any]] = {
    "SharedArray": SharedArray,
    "ArrayHandle": ArrayHandle,
    "Handle": Handle,
    "Range": Range,
    "Parts": Parts,
    "Allocation": Allocation,
    "Exported": Exported,
    "End": End,
    "Opener": Opener,
    "Device": Device,
    "Import": Import,
    "Export": Export,
    "Node": Node,
    "Table": Table,
    "Implicit": Implicit,
    "Located": arrays.Located,
    "Timeline": Timeline,
    "Opened": Opened,
    "Order": Order,
    "Turn": Turn,
    "Peers": Peers,
    "Peer": Peer,
    "decided": decided,
    "opened_on": opened_on,
    "texts": texts,
    "dtypes": dtypes,
    "lasting": lasting,
    "started": started,
    "off": off,
    "layers_on": layers_on,
    "here": here,
    "sealings": sealings,
    "boot_ids": boot_ids,
    "forms": tuple(Form),
    "prepared_by": prepared_by,
    "decode_dtype": decode_dtype,
    "order_of": order_of,
    "exchange_of": arrays.exchange_of,
    "kind_of": arrays.kind_of,
    "range_at": arrays.range_at,
    "current_mark": current_mark,
    "mark": mark,
    "offer": offer,
    "release_slot": release_slot,
    "reopened": reopened,
    "partial": partial,
    "rlock": type(threading.RLock()),
}
_native: Final = HandOver(**_kit)


share: Final[Callable[[object], ArrayHandle | None]] = _native.share
"""What `xs.share` returns, without options, for an array of ours, or one that says all by DLPack's exchange API."""

attach: Final[Callable[[object], SharedArray | None]] = _native.attach
"""What `xs.attach` returns for the bytes of an array handle and no options."""

attach_as: Final[Callable[[object, object], Any]] = _native.attach_as
"""The same for `like`, by DLPack's exchange API of its library. A `SharedArray` where the library's function has to
make the array: of what is read-only, or not written yet, or on devices that it has made none on yet.
"""

find: Final[Callable[[Device, str | None, int, int], Allocation | None]] = _native.find
"""Of another library, by device, backend, address and size: its allocation there, as `arrays.range_at` finds it."""

find_all: Final[Callable[[Leaves, dict[int, Any]], None]] = _native.find_all
"""`find` for the next of a tree's arrays, up to one at which Python has to look. The dict: by the numbers of their
kinds, tuples that begin with the device and the backend.
"""

export_all: Final[Callable[[list[Range], bool], list[Handle] | None]] = _native.export_all
"""What `memory.get_all` returns for ranges of allocations that are prepared for exports; true: for a pickle."""

open_all: Final[Callable[[tuple[Handle, ...], list[Range]], None]] = _native.open_all
"""Append what `memory.open_all` appends, for the first of the handles: up to one that needs Python."""
