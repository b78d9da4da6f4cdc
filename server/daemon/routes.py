"""The table of all calls: who may make them. A call that is not in it is refused to everybody."""

from __future__ import annotations

from typing import Final, NamedTuple

from ...transport.identity import Role

__all__ = ["ENROLMENT", "ROUTES", "Route"]


class Route(NamedTuple):
    """Who may make a call, and how the audit log has it."""

    roles: tuple[Role, ...]
    is_action: bool = False
    """Changes something, or takes models away: recorded before it begins and when it has ended. Other
    calls are recorded at a limited rate, and those of agents only when they are refused."""


_SITES: Final = Route(("client",))
_READ: Final = Route(("admin", "operator", "viewer"))
_RUNS: Final = Route(("admin", "operator"), is_action=True)
_ADMIN: Final = Route(("admin",), is_action=True)
ENROLMENT: Final = Route(())
"""Needs a token instead of a certificate, on a listener of its own."""

ROUTES: Final[dict[str, Route]] = {
    "Enrollment.Enroll": ENROLMENT,
    "Fleet.Connect": _SITES,
    "Fleet.Download": _SITES,
    "Fleet.Upload": _SITES,
    "Fleet.Renew": _SITES,
    "Admin.Status": _READ,
    "Admin.Sites": _READ,
    "Admin.Runs": _READ,
    "Admin.ShowRun": _READ,
    "Admin.Watch": _READ,
    "Admin.Pull": _RUNS,
    "Admin.Submit": _RUNS,
    "Admin.Stop": _RUNS,
    "Admin.Resume": _RUNS,
    "Admin.Tag": _RUNS,
    "Admin.Events": _READ,
    "Admin.Invite": _ADMIN,
    "Admin.Revoke": _ADMIN,
}
