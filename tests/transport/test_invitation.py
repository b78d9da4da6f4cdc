"""Invitations: one line, whole or refused."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.errors import ConfigError, MeadowError
from meadow.transport.invitation import FORM, TEXT_CHARS_MAX, Invitation
from meadow.transport.tokens import create_token

TOKEN = create_token()[0]
INVITED = Invitation(
    client="hospital-a", server="[2001:db8::7]:9444", ca_fingerprint="ab" * 32, token=TOKEN,
    expires_at_s=1.8e9,
)  # fmt: skip
LINE = INVITED.to_line()


def line_of(fields: Any) -> str:
    """Return a line with any content, and its right check."""
    content = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
    return f"{FORM}:{content}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def test_there_and_back() -> None:
    """Also with the white space that mail and terminals add; the token is not in its repr."""
    wrapped = "\n".join(LINE[start : start + 60] for start in range(0, len(LINE), 60))
    for text in (LINE, f"  {LINE}\r\n", wrapped):
        assert Invitation.from_text(text) == INVITED
    assert TOKEN not in repr(INVITED) and "\n" not in LINE


@given(place=st.integers(0, len(LINE) - 1), mark=st.characters(exclude_categories=["Z", "C"]))
def test_a_changed_line(place: int, mark: str) -> None:
    """One wrong letter is noticed, and no message repeats the secret."""
    changed = LINE[:place] + mark + LINE[place + 1 :]
    if changed != LINE:
        with pytest.raises(ConfigError) as found:
            Invitation.from_text(changed)
        assert TOKEN not in str(found.value) and LINE[30:60] not in str(found.value)


@given(text=st.text() | st.text().map(lambda text: f"{FORM}:{text}"))
def test_any_text(text: str) -> None:
    """It is refused in a sentence."""
    with pytest.raises(MeadowError):
        Invitation.from_text(text)


@pytest.mark.parametrize(
    "change",
    [
        {"server": "no port"}, {"server": ""}, {"ca_fingerprint": "AB" * 32}, {"ca_fingerprint": "ab"},
        {"token": "abc"}, {"client": "../x"}, {"client": "A"}, {"expires_at_s": 1}, {"more": 1},
        {"expires_at_s": float("nan")}, {"expires_at_s": float("inf")}, {"client": None},
    ],
)  # fmt: skip
def test_odd_contents(change: dict[str, Any]) -> None:
    """A right check does not make them an invitation."""
    fields = {
        "client": "a", "server": "h:1", "ca_fingerprint": "ab" * 32, "token": TOKEN, "expires_at_s": 1.0,
    }  # fmt: skip
    assert Invitation.from_text(line_of(fields)).client == "a"
    with pytest.raises(ConfigError, match="no server writes"):
        Invitation.from_text(line_of({**fields, **change}))


@pytest.mark.parametrize("fields", [[], 1, None, {}, "x"])
def test_other_contents(fields: Any) -> None:
    """JSON that is no object, or an empty one."""
    with pytest.raises(ConfigError):
        Invitation.from_text(line_of(fields))


def test_a_long_text() -> None:
    """It is refused before anything is made of it."""
    with pytest.raises(ConfigError, match="at most"):
        Invitation.from_text(LINE + " " * TEXT_CHARS_MAX)
