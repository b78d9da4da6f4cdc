"""The number of what server and agents say to each other.

It changes whenever the wire changes: a message of `fleet.proto` that one of the services uses, or
how tensors are laid out. tests/transport/test_protocol.py holds that.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PROTOCOL_VERSION"]

PROTOCOL_VERSION: Final = 5
