"""The functions of Unified Runtime (UR) that xpushare provides, with UR's names, arguments, numbers and result codes.

    for adapter in ur.urAdapterGet():
        for platform in ur.urPlatformGet(adapter):
            devices = ur.urDeviceGet(platform, ur.DeviceType.ALL)
    context = ur.urContextCreate(devices, None)

The arguments of a function are the inputs of the C function, in the same order. An array and its count are one
sequence, null is `None`, a struct is a dataclass, and an enumeration is an `IntEnum` or any int. A function returns the
outputs of the C function. A failure raises `URError`, whose `result` is a `Result`. Functions that this package does
not implement, such as those for kernels, always fail with `ERROR_UNSUPPORTED_FEATURE`.

The folder docs/ur describes every function. Those pages and `__init__.pyi`, which type checkers read, are generated
from the declarations in `_functions` (`python -m xpushare.ur._generate`).
"""

# Names that `__all__` lacks begin with an underscore, so that editors do not offer them.
from xpushare.common.result import Result
from xpushare.ur import _enums, _layers, _structs
from xpushare.ur._derived import build as _build
from xpushare.ur._derived import unsupported as _unsupported
from xpushare.ur._error import URError
from xpushare.ur._objects import HANDLES as _HANDLES

_NUMBERS = [name for name in _enums.__all__ if name not in ("INVALID_BITS", "invalid_bits")]
_STRUCTS = [name for name in _structs.__all__ if name not in ("BY_VALUE", "FIELD_KINDS", "STRUCTURE_TYPES")]
_built = _build()
_layers.attach({name: point for name, (_function, point) in _built.items()})
_public: dict[str, object] = {
    **{name: getattr(_enums, name) for name in _NUMBERS},
    **{name: getattr(_structs, name) for name in _STRUCTS},
    **{each.__name__: each for each in (*_HANDLES.values(), Result, URError)},
    **{name: function for name, (function, _point) in _built.items()},
    **_unsupported(),
}
globals().update(_public)

__all__ = sorted(_public)  # pyright: ignore[reportUnsupportedDunderAll]
