"""The planner's heart, as the fix installs it: ``counts``, ``order`` and ``plan`` are the registry's own payload files.

What the command line plans with is therefore, byte for byte, what a server splits with.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from fixpack.errors import Problem, UsageError
from fixpack.registry import default_root


def _load(name: str) -> ModuleType:
    """Run one payload file as a module, without leaving bytecode in the registry.

    :raises UsageError: if the registry does not hold it.
    """
    path = os.path.join(default_root(), "patches", "hotsplit", f"{name}.py")
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
    except OSError as error:
        message = f"the planner's file cannot be read: {error.strerror}"
        raise UsageError(Problem("registry_missing", message, "hotsplit", path)) from error
    module = ModuleType(f"fixpack_hotsplit_{name}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)
    return module


if TYPE_CHECKING:
    import counts
    import order
    import plan
else:
    counts, order, plan = _load("counts"), _load("order"), _load("plan")

__all__ = ["counts", "order", "plan"]
