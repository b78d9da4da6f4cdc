"""Makes of valid inputs others that nobody sends: bytes, messages of fields, and records of values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Proto

__all__ = ["mutate_bytes", "mutate_fields", "mutate_values"]

INTEGERS = (0, 1, -1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 9007199254740992,
            (1 << 62) - 1, (1 << 63) - 1, -(1 << 63))  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 5e-324, 1e-200, 1e-170, 1e-30, 1e30, 1e200, 1.7e308,
          float("nan"), float("inf"), float("-inf"))  # fmt: skip
TEXTS = ("", "0", "9" * 5000, "-1", "1e400", "nan", "²" * 8, "../../etc/passwd", "\0", "a" * 70_000,
         "[" * 20_000, "{" * 20_000, '{"a":' * 5000, "\n" * 100, "float32", "object", "O8")  # fmt: skip
BYTES = (b"", b"\0", b"\xff" * 8, b"\x80" * 64, bytes(32), bytes(64), b"\x93NUMPY", bytes(70_000))
_EMPTY = {
    FieldDescriptor.CPPTYPE_STRING: "", FieldDescriptor.CPPTYPE_DOUBLE: 0.5,
    FieldDescriptor.CPPTYPE_BOOL: True, FieldDescriptor.CPPTYPE_UINT64: 1,
    FieldDescriptor.CPPTYPE_INT64: 1,
}  # fmt: skip
LENGTHS = (0, 1, 2, 3, 100, 1 << 10)


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Flip, overwrite, cut, repeat, insert or swap parts of some bytes, up to five times."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 5)):
        at = random.randrange(len(changed) + 1)
        end = min(len(changed), at + random.choice((1, 1, 2, 4, 8, 32)))
        how = random.randrange(7)
        if how == 0 and changed:
            changed[at % len(changed)] ^= 1 << random.randrange(8)
        elif how == 1 and changed:
            changed[at % len(changed)] = random.choice(
                (0, 1, 0x7F, 0x80, 0xFF, random.randrange(256))
            )
        elif how == 2:
            del changed[at:end]
        elif how == 3:
            changed[at:at] = changed[at:end] * random.choice((1, 2, 50))
        elif how == 4:
            changed[at:at] = random.randbytes(random.randint(1, 8))
        elif how == 5:
            size = random.choice((4, 8))
            changed[at:end] = random.choice(INTEGERS).to_bytes(16, "little", signed=True)[:size]
        else:
            del changed[at:]
    return bytes(changed)


def mutate_fields(message: Proto, random: Random) -> bytes:
    """Give some fields of a message other values, and return it serialised; sometimes torn."""
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(random.randint(1, 3)):
        holder, field = random.choice(list(_fields(changed)))
        _change(holder, field, random)
    data = changed.SerializeToString()
    return mutate_bytes(data, random) if random.random() < 0.1 else data


def _fields(message: Proto) -> Iterator[tuple[Proto, Any]]:
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is None:
            continue
        held = getattr(message, field.name)
        if not isinstance(held, Proto):
            for item in held:
                yield from _fields(item)
        elif message.HasField(field.name):
            yield from _fields(held)


def _change(holder: Proto, field: Any, random: Random) -> None:
    held = getattr(holder, field.name)
    if isinstance(held, Proto) or random.random() < 0.1:
        if random.random() < 0.5:
            holder.ClearField(field.name)
        elif isinstance(held, Proto):
            held.SetInParent()
    elif field.message_type is not None or not isinstance(held, bool | int | float | str | bytes):
        _change_list(held, field, random)
    else:
        _assign(holder, field, random)


def _change_list(held: Any, field: Any, random: Random) -> None:
    items = list(held)
    how = random.randrange(4)
    if how == 0 or not items:
        if field.message_type is not None:
            held.add()
        else:
            held.extend([items[0] if items else _empty(field)])
    elif how == 1:
        del held[random.randrange(len(items))]
    elif how == 2:
        held.extend([random.choice(items)] * random.choice((1, 2, 300)))
    else:
        random.shuffle(items)
        del held[:]
        held.extend(items)


def _empty(field: Any) -> Any:
    return b"" if field.type == FieldDescriptor.TYPE_BYTES else _EMPTY[field.cpp_type]


def _assign(holder: Proto, field: Any, random: Random) -> None:
    values: tuple[Any, ...] = {
        bool: (True, False), int: (*INTEGERS, (1 << 64) - 1), float: FLOATS, str: TEXTS, bytes: BYTES
    }[type(getattr(holder, field.name))]  # fmt: skip
    value = random.choice(values)
    if isinstance(value, bytes) and random.random() < 0.7:
        value = mutate_bytes(getattr(holder, field.name), random)
    try:
        setattr(holder, field.name, value)
    except ValueError:  # another size or sign
        setattr(holder, field.name, 1)


def mutate_values(values: Mapping[str, Any], random: Random) -> dict[str, Any]:
    """Give some values of a record others, of the same or another kind; take some away, add some."""
    changed = dict(values)
    for _ in range(random.randint(1, 3)):
        if not changed:
            break
        name = random.choice(list(changed))
        value, how = changed[name], random.random()
        if how < 0.1:
            del changed[name]
        elif how < 0.2:
            changed[random.choice(TEXTS[:-1])[:200]] = value
        elif how < 0.35:
            changed[name] = random.choice(
                (*INTEGERS, *FLOATS, *TEXTS, *BYTES, True, [], [1], [0.5], ["a"], [b""], [True])
            )
        else:
            changed[name] = _like(value, random)
    return changed


def _like(value: Any, random: Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((*INTEGERS, value + 1, -value))
    if isinstance(value, float):
        return random.choice((*FLOATS, value * 2, value / 3))
    if isinstance(value, str):
        return random.choice((*TEXTS, value + value, value[: len(value) // 2]))
    if isinstance(value, bytes):
        return random.choice((*BYTES, mutate_bytes(value, random), mutate_bytes(value, random)))
    if isinstance(value, list) and value:
        other = [_like(each, random) for each in value]
        return random.choice((other, value * random.choice(LENGTHS), value[:-1]))
    return value
