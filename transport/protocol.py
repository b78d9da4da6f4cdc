"""The version of the protocol between server and agents.

It changes with the wire: a message of `fleet.proto` that a service uses, or the layout of
tensors. tests/transport/test_protocol.py checks that.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PROTOCOL_VERSION"]

PROTOCOL_VERSION: Final = 5
