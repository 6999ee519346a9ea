"""beartype, asked once for each signature and not before it is needed.

For every function of the package jaxtyping's import hook makes two functions without a body, which have its signature,
and hands them to a typechecker. A function inside another is handed over again at each call of the outer one, and most
functions are not called by the tests that run. What is checked depends on the signature alone, so beartype writes the
check at the first call, and once for all functions that are written in the same place.
"""

from collections.abc import Callable, Hashable
from typing import Any

from beartype import beartype

Function = Callable[..., Any]
_checks: dict[Hashable, Function] = {}


def check(bare: Function) -> Function:
    """The function that checks its arguments and its result by the annotations of `bare`."""
    typechecked: Function | None = None

    def checked(*arguments: Any, **keywords: Any) -> Any:
        nonlocal typechecked
        __tracebackhide__ = True
        if typechecked is None:
            typechecked = _check_of(bare)
        return typechecked(*arguments, **keywords)

    return checked


def _check_of(bare: Function) -> Function:
    signature = _signature(bare)
    if "<locals>" in str(signature[1:]):  # a class that is another one at each call, whatever its name
        return beartype(bare)
    if signature not in _checks:
        _checks[signature] = beartype(bare)
    return _checks[signature]


def _signature(bare: Function) -> tuple[Hashable, ...]:
    """Where a function stands, its parameters, and how their types are written.

    The types themselves would not do: an annotation is a new object at each call of the outer function.
    """
    code = bare.__code__
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    defaults = len(bare.__defaults__ or ()), tuple(bare.__kwdefaults__ or ())
    types = tuple((name, repr(annotation)) for name, annotation in bare.__annotations__.items())
    return f"{bare.__module__}.{bare.__qualname__}", code.co_varnames, code.co_code, counts, defaults, types
