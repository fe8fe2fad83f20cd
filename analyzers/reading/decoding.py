"""Turns parsed JSON into frozen dataclasses by their type hints; a wrong file fails at its wrong field."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


class MalformedError(ValueError):
    """The JSON does not have the shape of the dataclass; the message names the field and what is wrong."""


def decode(kind: type[_T], value: object, where: str = "") -> _T:
    """`value` as the dataclass `kind`; keys that it does not know are left out, fields with a default may be missing.

    Fields may be str, int, float, bool, None, Any, dataclasses, unions, `dict[str, X]` and `tuple[X, ...]`.
    Raises MalformedError.
    """
    if not isinstance(value, Mapping):
        raise MalformedError(f"{where or 'the content'} is not an object")
    hints = get_type_hints(kind)
    fields = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        place = f"{where}.{field.name}" if where else field.name
        if field.name not in value and field.default is not dataclasses.MISSING:
            continue
        if field.name not in value:
            raise MalformedError(f"{place} is missing")
        fields[field.name] = _decode(hints[field.name], value[field.name], place)
    return kind(**fields)


def _decode(hint: Any, value: object, where: str) -> Any:
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return decode(hint, value, where)  # type: ignore[arg-type]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise MalformedError(f"{where} is not a list")
        return tuple(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise MalformedError(f"{where} is not an object")
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _decode_scalar(hint, value, where)


def _decode_union(choices: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and types.NoneType in choices:
        return None
    kinds = [choice for choice in choices if choice is not types.NoneType]
    for kind in kinds[:-1]:
        try:
            return _decode(kind, value, where)
        except MalformedError:
            continue
    return _decode(kinds[-1], value, where)


def _decode_scalar(kind: type, value: object, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # bool is an int to Python, not to a reader of JSON.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MalformedError(f"{where} is {value!r}, not {_NAMES[kind]}")
    return value


_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
