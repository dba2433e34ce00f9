"""DLPack's C exchange API, for arrays of tests that say all by it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["Tensor", "capsule"]


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("on", ctypes.c_int32), ("ordinal", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_View = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
_CurrentStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class _Exchange(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p), ("from_object", ctypes.c_void_p), ("to_object", ctypes.c_void_p),
        ("view", _View), ("stream", _CurrentStream),
    )  # fmt: skip


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_name = b"dlpack_exchange_api"  # the capsule does not copy it
_kept: list[_Exchange] = []


def capsule(view: Callable[[Any, Tensor], None], stream: Callable[[int, int], int]) -> Any:
    """`view` fills in what an array is; `stream` returns the current one of a device type and an ordinal."""

    def look(array: Any, out: Any) -> int:
        view(array, out.contents)
        return 0

    def current(on: int, ordinal: int, out: Any) -> int:
        out[0] = stream(on, ordinal)
        return 0

    _kept.append(_Exchange(1, 3, None, None, None, None, _View(look), _CurrentStream(current)))
    return _new_capsule(ctypes.addressof(_kept[-1]), _name, None)
