"""Show the signature of classes that have `__new__`, and none for classes that only a function makes."""

from __future__ import annotations

from typing import Any

import griffe


class Constructors(griffe.Extension):
    def on_class(self, *, cls: griffe.Class, **_options: Any) -> None:
        made = cls.members.get("__init__") or cls.members.get("__new__")
        if not isinstance(made, griffe.Function):
            return
        if any(str(each.annotation) == "Never" for each in made.parameters):
            cls.members.pop("__init__", None)
        else:
            cls.members["__init__"] = made
