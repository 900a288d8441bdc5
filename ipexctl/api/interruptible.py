"""Run the API calls of a Python program, each in its own thread, and check the types of their options.

A call works in a thread so that Ctrl-C can cancel it and still wait for the hosts to end what was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import FunctionType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from ipexctl.errors import IpexctlError, UserError
from ipexctl.hosts.host import did_you_mean
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import HostError, ignore_event

T = TypeVar("T")


def interruptible(work: Callable[[Cancel], T], after: Callable[[], object] = ignore_event) -> T:
    """Do the work in a thread and return its result.

    The first Ctrl-C cancels the work, and is raised after the work on the hosts has ended and `after` was called. A
    second one is raised at once.
    """
    cancel = Cancel()
    future = run_in_background(lambda: work(cancel), "call")
    try:
        return future.result()
    except KeyboardInterrupt:
        cancel.throw()
        with suppress(HostError, IpexctlError):
            future.result()
        after()
        raise


def refuses_wrong_calls(handle: type[T]) -> type[T]:
    """Make the public methods of a class raise a UserError for wrong arguments, where Python would raise a TypeError.

    A text where a list is wanted is refused too. A class decorator.
    """
    for name, member in list(vars(handle).items()):
        if name[0] == "_" and name != "__init__":
            continue
        if isinstance(member, FunctionType):
            setattr(handle, name, _checked(member))
        elif isinstance(member, classmethod):
            setattr(handle, name, classmethod(_checked(member.__func__)))
    return handle


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with checks of its arguments."""
    known = signature(method)
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.parameters.values())
    lists = {name for name, parameter in known.parameters.items() if _is_list(parameter.annotation)}

    @wraps(method)
    def call(*args: object, **options: object) -> Any:
        """Check the arguments and call the method."""
        if not takes_any:  # else the method itself checks the names
            check_types(dict.fromkeys(known.parameters, object), options)
        try:
            bound = known.bind(*args, **options)
        except TypeError as error:
            name = method.__qualname__
            raise UserError(f"{name}: {error}", fix=f"help(ipexctl.{name.removesuffix('.__init__')})") from None
        check_lists({name: value for name, value in bound.arguments.items() if name in lists})
        return method(*args, **options)

    return call


def _is_list(annotation: object) -> bool:
    """True if the annotation wants a list, and no text."""
    kinds = str(annotation).split(" | ")
    return any(kind.startswith("Sequence[") for kind in kinds) and "str" not in kinds


def check_types(known: Mapping[str, Any], given: Mapping[str, Any], also: Iterable[str] = ()) -> None:
    """Refuse an unknown option, or a value of a wrong type.

    `known`: option → its type. `also`: names that may be meant.
    """
    for name, value in given.items():
        if name not in known:
            otherwise = "its long name, with _ for -"
            raise UserError(f"there is no option {name!r}", fix=did_you_mean(name, {*known, *also}, otherwise))
        if not _is_of(value, known[name]):
            raise UserError(f"{name}={value!r} is not possible", fix=f"{name}: {_described(known[name])}")


def check_lists(given: Mapping[str, object]) -> None:
    """Refuse a text instead of a list: its letters would be the values."""
    for name, value in given.items():
        if isinstance(value, (str, bytes)):
            raise UserError(f"{name}={value!r} is not possible", fix=f"{name}: a list, such as {value.split()!r}")


def _is_of(value: object, kind: Any) -> bool:
    """True if the value has the type."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_is_of(value, part) for part in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value)
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, (str, Path) if kind is Path else kind)


def _described(kind: Any) -> str:
    """Describe a type for a fix."""
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_described, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list of str"
    return "None" if kind is type(None) else str(kind.__name__)
