"""Hands a live function to the compile worker: where it stands, and its arguments as abstract values."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analyzers.errors import UserError
from profiler.compile import UserFunction


def user_function(function: Callable[..., Any], args: Any) -> UserFunction:
    """Return the source for `CompileRequest`. Raises UserError for a function that a worker cannot import."""
    plain = inspect.unwrap(function)
    name = getattr(plain, "__qualname__", "")
    module = getattr(plain, "__module__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not name or found is None or inspect.unwrap(found) is not plain:
        raise UserError(
            f"{name or function!r} cannot be handed to the compiler's process: define it by `def` at the top level of "
            "a module, not inside a function or as a lambda."
        )
    file = inspect.getsourcefile(plain) or ""
    try:
        pickled = pickle.dumps(args if callable(args) else _abstract(args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"the arguments of {name} cannot be handed to the compiler's process ({error}); give arrays or "
            "jax.ShapeDtypeStructs without shardings, or a top-level function of the devices that returns them."
        ) from error
    return UserFunction(module, str(Path(file).resolve()), name, tuple(sys.path), pickled.hex())


def _abstract(args: Any) -> Any:
    import jax

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        if getattr(leaf, "sharding", None) is not None and isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError("one has a sharding, over devices that only this process knows")
        made = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.eval_shape(lambda: jax.numpy.asarray(leaf))
        return jax.ShapeDtypeStruct(made.shape, made.dtype)

    return jax.tree.map(shape, tuple(args))
