"""Secure aggregation: the server learns the sum of the clients' vectors, and nothing else.

State machines that take and return bytes: `plan_secure_sum` makes the plan; a `ServerSession` and
one `ClientSession` per client carry it out. docs/secure-aggregation.md has the threat model.
"""

from __future__ import annotations

from ....errors import SecureAggregationError
from .binding import Binding, Roster
from .client import ClientSession
from .client_keys import ADVERTISEMENT_BYTES, Advertisement, ClientKeys
from .plan import Minimum, Plan, plan_secure_sum
from .server import SecureSum, ServerSession

__all__ = [
    "ADVERTISEMENT_BYTES",
    "Advertisement",
    "Binding",
    "ClientKeys",
    "ClientSession",
    "Minimum",
    "Plan",
    "Roster",
    "SecureAggregationError",
    "SecureSum",
    "ServerSession",
    "plan_secure_sum",
]
