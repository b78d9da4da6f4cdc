"""Names with values of Flower's kinds, as protobuf entries: metrics, configurations, settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from ..errors import ProtocolError
from .fleet_pb2 import Booleans, ByteStrings, Doubles, Entry, Integers, Strings, Value
from .header import check_name

__all__ = ["EntryValue", "pack_entries", "unpack_entries"]

Scalar = int | float | bool | str | bytes
EntryValue = Scalar | list[int] | list[float] | list[bool] | list[str] | list[bytes]

# bool comes before int, which it is a kind of.
_KINDS: Final = (
    (bool, "boolean", "booleans", Booleans),
    (int, "integer", "integers", Integers),
    (float, "double", "doubles", Doubles),
    (str, "text", "texts", Strings),
    (bytes, "data", "datas", ByteStrings),
)
_SCALARS: Final = {kind for _, kind, _, _ in _KINDS}


def pack_entries(values: Mapping[str, EntryValue]) -> list[Entry]:
    """Return `values` as entries, in their order; a bool stays a bool.

    Raises:
        ProtocolError: a name is too long, a value is of no kind that can be sent, or an int
            does not fit into 64 bits.
    """
    return [Entry(key=check_name(key, "value"), value=_pack(key, v)) for key, v in values.items()]


def unpack_entries(entries: Iterable[Entry]) -> dict[str, EntryValue]:
    """Return the values by name, in the order of the entries.

    Raises:
        ProtocolError: a name is there twice or too long, or a value is of an unknown kind.
    """
    values: dict[str, EntryValue] = {}
    for entry in entries:
        if check_name(entry.key, "value") in values:
            raise ProtocolError(f"the value {entry.key!r} is there twice")
        values[entry.key] = _unpack(entry.key, entry.value)
    return values


def _pack(key: str, value: EntryValue) -> Value:
    # Flower takes an empty list of no kind in particular; any kind brings it back.
    sample = value if not isinstance(value, list) else value[0] if value else 0.0
    kind = next((kind for kind in _KINDS if isinstance(sample, kind[0])), None)
    if kind is None:
        raise ProtocolError(f"the value {key!r} is a {type(sample).__name__}, which is not sent")
    _, one, many, message = kind
    try:
        held = message(values=cast(list[Any], value)) if isinstance(value, list) else value
        return Value(**{many if isinstance(value, list) else one: cast(Any, held)})
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"the value {key!r} cannot be sent: {error}") from None


def _unpack(key: str, value: Value) -> EntryValue:
    kind = value.WhichOneof("kind")
    if kind is None:
        raise ProtocolError(f"the value {key!r} is of an unknown kind")
    held = getattr(value, kind)
    return cast(EntryValue, held if kind in _SCALARS else list(held.values))
