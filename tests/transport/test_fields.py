"""The table of what fields may hold: complete, and checked at both ends of every bound."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from meadow.errors import LimitError, ProtocolError
from meadow.transport import fleet_pb2 as pb
from meadow.transport.fields import RULES, Elsewhere, Length, Nested, Range, check_fields

ENDS = (pb.ServerMessage, pb.AgentMessage)
INTEGERS = {FieldDescriptor.CPPTYPE_UINT64: 64, FieldDescriptor.CPPTYPE_UINT32: 32}


def reachable(message: Descriptor, seen: set[str] | None = None) -> Iterator[Descriptor]:
    """Yield a message's type and those of what it holds, but for what is checked elsewhere."""
    seen = set() if seen is None else seen
    if message.name not in seen:
        seen.add(message.name)
        yield message
        for field in message.fields:
            if isinstance(RULES.get(message.name, {}).get(field.name), Nested):
                yield from reachable(field.message_type, seen)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_every_field_has_a_rule(end: type) -> None:
    """One that is added to the protocol without one fails here; so does a rule without a field."""
    for message in reachable(end.DESCRIPTOR):  # type: ignore[attr-defined]
        rules = RULES.get(message.name, {})
        assert set(rules) == {field.name for field in message.fields}, message.name
        for field in message.fields:
            rule = rules[field.name]
            if field.message_type is not None and not isinstance(rule, Elsewhere | Length):
                assert isinstance(rule, Nested), f"{message.name}.{field.name}"


FIELDS = [
    (name, field, rule)
    for name, rules in RULES.items()
    for field, rule in rules.items()
    if isinstance(rule, Length | Range) and field not in ("run_config", "joined_nodes")
]


@pytest.mark.parametrize(("name", "field", "rule"), FIELDS, ids=lambda each: str(each)[:40])
def test_both_ends_of_every_bound(name: str, field: str, rule: Length | Range) -> None:
    """What is at a bound passes; what is beyond it is a typed error that names the field."""
    kind = getattr(pb, name)
    described = kind.DESCRIPTOR.fields_by_name[field]

    def check(value: object) -> None:
        message = kind()
        for other, bound in RULES[name].items():
            if isinstance(bound, Length) and bound.least:
                setattr(message, other, "x" * bound.least)
        setattr(message, field, value)
        check_fields(message)

    if isinstance(rule, Length):
        letter = b"x" if described.type == FieldDescriptor.TYPE_BYTES else "x"
        check(letter * rule.most)
        with pytest.raises(LimitError, match=rf"{name}\.{field} of a message has the length"):
            check(letter * (rule.most + 1))
        return
    real = described.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE
    largest = (1 << INTEGERS.get(described.cpp_type, 63)) - 1
    if real:
        check(rule.most)
        for wrong in (math.nan, math.inf, -math.inf, rule.most * 2):
            with pytest.raises(ProtocolError, match=rf"{name}\.{field} of a message is"):
                check(wrong)
    elif described.cpp_type != FieldDescriptor.CPPTYPE_BOOL:
        check(int(min(rule.most, largest)))
        if rule.most < largest:
            with pytest.raises(ProtocolError, match=rf"{name}\.{field} of a message is"):
                check(int(rule.most) + 1)


def test_what_is_inside_is_checked() -> None:
    """The table is gone through from the outermost message."""
    metadata = pb.Metadata(group_id="9" * 5000)
    instruction = pb.Instruction(id="a", envelope=pb.Envelope(metadata=metadata))
    with pytest.raises(LimitError, match=r"Metadata\.group_id of a message has the length 5000"):
        check_fields(pb.ServerMessage(instruction=instruction))
