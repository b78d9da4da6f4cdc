"""What the pages say. Every text is escaped, whoever wrote it: names, causes and metrics are peers'."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ...pages.parts import facts, quiet
from ...reports.markup import Html, element, fragment, table
from ...reports.sentences import amount, moment, sentence_of
from ...transport import fleet_pb2 as pb
from ...transport.invitation import Invitation
from .curves import curve
from .followed_run import FollowedRun

__all__ = [
    "events_part",
    "invitation_part",
    "overview_part",
    "run_part",
    "runs_table",
    "sites_part",
]

ROUNDS_SHOWN: Final = 20
EVENTS_SHOWN: Final = 30
RUNS_SHOWN: Final = 10
CURVES_MAX: Final = 24
TONES: Final = {
    "finished": "good", "connected": "good", "failed": "bad", "revoked": "bad", "running": "open",
    "queued": "open", "stopped": "open", "away": "open", "abandoned": "bad",
}  # fmt: skip
PARTS: Final = ("train", "evaluate", "server", "query")


def overview_part(
    status: pb.ServerStatus, runs: Sequence[pb.Run], events: Sequence[pb.RunEvent]
) -> Html:
    """Return the live part of the overview."""
    said = {
        "sites connected": f"{status.connected} of {status.enrolled}",
        "runs under way": str(len(status.runs)),
        "version": status.version,
        "up since": moment(status.started_at_s),
    }
    return fragment(
        [
            facts(said),
            element("h2", "Under way"),
            runs_table(status.runs) if status.runs else quiet("No run is under way."),
            element("h2", "Last runs"),
            runs_table(runs[:RUNS_SHOWN]) if runs else quiet("There was no run yet."),
            element("h2", "Last events"),
            _events((each.at_s, each.kind, _detail(each)) for each in events[:RUNS_SHOWN]),
        ]
    )


def runs_table(runs: Iterable[pb.Run]) -> Html:
    """Return runs as a table."""
    rows = [
        (
            element("a", f"run {run.id}", href=f"/runs/{run.id}"),
            run.app,
            _status(run.status),
            _progress(run),
            moment(run.submitted_at_s),
            run.cause,
        )
        for run in runs
    ]
    return table(("run", "app", "status", "rounds", "submitted", "cause"), rows, class_="words")


def run_part(run: pb.Run, followed: FollowedRun) -> Html:
    """Return the live part of a run's page."""
    rounds = followed.rounds()
    last: Mapping[str, Any] = rounds[-1] if rounds else {}
    failed = sum(_number(row.get("failures")) for row in rounds)
    said = {
        "status": _status(run.status),
        "round": _progress(run),
        "clients in the last round": f"{_number(last.get('clients')):g}" if last else "-",
        "failures of clients": f"{failed:g}",
        "sent": amount(sum(_number(row.get("bytes_sent")) for row in rounds)),
        "received": amount(sum(_number(row.get("bytes_received")) for row in rounds)),
        "seconds a round": f"{_mean([_number(row.get('duration_s')) for row in rounds]):.3g}",
        **_privacy(last, followed.budget),
        "app": f"{run.app} {run.sha256[:12]}",
        "submitted": moment(run.submitted_at_s),
        "ended": moment(run.finished_at_s),
    }
    cause = [element("p", run.cause, class_=TONES.get(run.status, ""))] if run.cause else []
    drawn = [curve(title, points) for title, points in _curves(rounds)]
    return fragment(
        [
            facts(said),
            *cause,
            element("h2", "By round"),
            element("div", *drawn, class_="curves")
            if any(drawn)
            else quiet("No round is complete."),
            element("h2", "Last rounds"),
            _rounds(rounds[-ROUNDS_SHOWN:]),
            element("h2", "Clients that failed"),
            _events(reversed(followed.failures()[-EVENTS_SHOWN:]), none="No client failed."),
            element("h2", "Events"),
            _events(reversed(followed.events()[-EVENTS_SHOWN:])),
        ]
    )


def sites_part(sites: Sequence[pb.Site], *, may_tag: bool, may_revoke: bool) -> Html:
    """Return the live part of the page of sites."""
    if not sites:
        return quiet("No site was invited yet.")
    rows = []
    for site in sites:
        links = []
        if may_tag:
            links.append(element("a", "tags", href=f"/sites/{site.name}/tags"))
        if may_revoke and site.state != "revoked":
            links.append(element("a", "revoke", href=f"/sites/{site.name}/revoke"))
        rows.append(
            (
                site.name,
                _status(site.state),
                " ".join(site.tags) or "-",
                moment(site.seen_at_s),
                moment(site.certificate_until_s),
                site.version or "-",
                fragment(_spaced(links)),
            )
        )
    counts = {
        state: sum(site.state == state for site in sites)
        for state in ("connected", "away", "invited", "revoked")
    }
    headings = ("site", "state", "tags", "last seen", "certificate until", "version", "")
    counted = {state: str(count) for state, count in counts.items()}
    return fragment([facts(counted), table(headings, rows, class_="words")])


def events_part(events: Sequence[pb.RunEvent]) -> Html:
    """Return the live part of the page of the server's events."""
    return _events((each.at_s, each.kind, _detail(each)) for each in events)


def invitation_part(site: str, invitation: pb.Invitation) -> Html:
    """Return a new invitation, which is shown once."""
    line = Invitation(
        client=site, server=invitation.enroll_address, ca_fingerprint=invitation.ca_fingerprint,
        token=invitation.token, expires_at_s=invitation.expires_at_s,
    ).to_line()  # fmt: skip
    text = (
        f"For {site}, for one use until {moment(invitation.expires_at_s)}; it is not shown again:"
    )
    note = "It is a secret. Send it to the site's owner, who pastes it when this asks for it:"
    return fragment(
        [
            element("p", text),
            element("pre", line, tabindex="0"),
            element("p", note),
            element("pre", "meadow client join - --dir DIR", tabindex="0"),
        ]
    )


# ---------------------------------------------------------------------- parts of pages


def _status(status: str) -> Html:
    return element("span", status, class_=f"status {TONES.get(status, '')}")


def _progress(run: pb.Run) -> Html:
    text = f"{run.round} of {run.rounds}" if run.rounds else str(run.round)
    if not run.rounds:
        return fragment([text])
    bar = element("progress", value=str(run.round), max=str(run.rounds), aria_label=text)
    return fragment([text, " ", bar])


def _privacy(last: Mapping[str, Any], budget: Mapping[str, Any]) -> dict[str, str]:
    said = last.get("privacy")
    if not isinstance(said, dict):
        return {}
    spent = f"{_number(said.get('epsilon')):.4g}"
    bound = budget.get("epsilon_max")
    if isinstance(bound, int | float):
        spent = f"{spent} of {bound:g}"
    return {"epsilon": f"{spent} at delta {_number(said.get('delta')):g}"}


def _curves(rounds: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[tuple[float, float]]]]:
    """Return (title, points) of each metric, and of what a round costs."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rounds:
        number = _number(row.get("round"))
        for part in PARTS:
            metrics = row.get(part)
            for name, value in metrics.items() if isinstance(metrics, dict) else ():
                if isinstance(value, int | float):
                    curves.setdefault(f"{part} {name}", []).append((number, float(value)))
        for name, title in (("duration_s", "seconds"), ("clients", "clients")):
            curves.setdefault(title, []).append((number, _number(row.get(name))))
        if isinstance(privacy := row.get("privacy"), dict):
            curves.setdefault("epsilon", []).append((number, _number(privacy.get("epsilon"))))
    return list(curves.items())[:CURVES_MAX]


def _rounds(rounds: Sequence[Mapping[str, Any]]) -> Html:
    if not rounds:
        return quiet("No round is complete.")
    names = sorted(
        {
            (part, name)
            for row in rounds
            for part in PARTS
            if isinstance(row.get(part), dict)
            for name in row[part]
        },
        key=lambda each: (PARTS.index(each[0]), each[1] != "loss", each[1]),
    )[:CURVES_MAX]
    headings = ["round", "clients", "failed", *(f"{part} {name}" for part, name in names)]
    rows = []
    for row in reversed(rounds):
        metrics = [(row.get(part) or {}).get(name) for part, name in names]
        rows.append(
            [
                f"{_number(row.get('round')):g}",
                f"{_number(row.get('clients')):g}",
                f"{_number(row.get('failures')):g}",
                *(f"{value:.4g}" if isinstance(value, int | float) else "-" for value in metrics),
                f"{_number(row.get('duration_s')):.2f}",
                amount(_number(row.get("bytes_sent"))),
                amount(_number(row.get("bytes_received"))),
            ]
        )
    return table([*headings, "seconds", "sent", "received"], rows)


def _events(
    events: Iterable[tuple[float, str, Mapping[str, Any]]], *, none: str = "No event yet."
) -> Html:
    rows = [
        element(
            "tr", element("th", moment(at_s), scope="row"), element("td", _sentence(kind, detail))
        )
        for at_s, kind, detail in events
    ]
    if not rows:
        return quiet(none)
    made = element("table", element("tbody", *rows), class_="words events")
    return element("div", made, class_="scroll")


def _sentence(kind: str, detail: Mapping[str, Any]) -> str:
    if (sentence := sentence_of(kind, detail)) is not None:
        return sentence
    words = ", ".join(f"{key} {value}" for key, value in detail.items() if value not in ("", None))
    return f"{kind.replace('_', ' ')}{': ' if words else ''}{words}"


def _detail(event: pb.RunEvent) -> Mapping[str, Any]:
    detail = json.loads(event.json)
    return detail if isinstance(detail, dict) else {}


def _spaced(parts: Iterable[Html]) -> list[Html]:
    return [piece for part in parts for piece in (part, Html(" "))]


def _number(value: object) -> float:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else 0.0  # type: ignore[arg-type]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
