"""What the owner's pages say. Every text is escaped, whoever wrote it: names and reasons are peers'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlencode

from ...pages.parts import facts, folded, form, quiet
from ...reports.markup import Html, element, fragment, table
from ...reports.sentences import amount, epsilon_text, moment
from ..owner.sent_log import SentRow
from ..tools.status import ClientSpending, ClientStatus

__all__ = [
    "REFUSED_COLUMNS",
    "RESULT_COLUMNS",
    "apps_part",
    "budgets_part",
    "log_filter",
    "log_part",
    "sent_table",
    "status_part",
]

RUNS_SHOWN: Final = 50
HASH_DIGITS: Final = 12
TONES: Final = {"refused": "open", "failed": "bad"}
COLUMNS: Final = (
    "at", "run", "round", "app", "hash", "what", "bytes", "norm", "epsilon", "of a record", "reason",
)  # fmt: skip
RESULT_COLUMNS: Final = COLUMNS[:-1]
REFUSED_COLUMNS: Final = ("at", "run", "round", "app", "what", "reason")
SHOWN_KINDS: Final = {"": "everything", "results": "results", "refused": "refusals and failures"}


def status_part(status: ClientStatus) -> Html:
    """Return the state of the agent."""
    running = "not running" if status.process is None else f"running, process {status.process}"
    takes_part = ("yes", "good") if not status.closed else ("no", "open")
    said = {
        "agent": running,
        "takes part": element("span", takes_part[0], class_=f"status {takes_part[1]}"),
        "node": str(status.node_id),
        "server": status.server,
        "certificate until": moment(status.certificate_until_s),
        "last instruction": status.last_instruction or "-",
    }
    why = [element("p", f"It takes no part now: {status.closed}.", class_="open")]
    if status.paused:
        change = element("a", "Resume ...", href="/resume")
    else:
        change = element("a", "Pause ...", href="/pause")
    return fragment(
        [
            facts(said),
            *(why if status.closed else []),
            element("p", change),
        ]
    )


def apps_part(status: ClientStatus) -> Html:
    """Return what may run here."""
    rows = [(app.name, app.sha256[:HASH_DIGITS] or "-", app.problem or "-") for app in status.apps]
    shown = table(("app", "hash", "problem"), rows, class_="words")
    return fragment(
        [element("h2", "Apps that may run here"), shown if rows else quiet("No app is installed.")]
    )


def budgets_part(status: ClientStatus, spending: ClientSpending) -> Html:
    """Return what was spent on the data, in all and by run, and what is left."""
    rows = [
        _budget("epsilon of this site", spending.epsilon, spending.epsilon_max),
        _budget("epsilon of a single record", spending.record_epsilon, spending.record_epsilon_max),
        _rounds(status),
    ]
    delta = f"Epsilon is that of all rounds together, at delta {spending.delta:g}."
    runs = [
        (
            element("a", f"run {run.run_id}", href=f"/log?{urlencode({'run': run.run_id})}"),
            run.app,
            str(run.rounds),
            epsilon_text(run.epsilon),
            epsilon_text(run.record_epsilon),
        )
        for run in reversed(spending.runs[-RUNS_SHOWN:])
    ]
    return fragment(
        [
            element("h2", "Budgets"),
            table(("budget", "spent", "of", "left"), rows),
            quiet(delta),
            element("h2", "By run"),
            table(("run", "app", "rounds", "epsilon", "of a record"), runs)
            if runs
            else quiet("Nothing was trained on this data."),
        ]
    )


def sent_table(rows: Sequence[SentRow], *, none: str, columns: Sequence[str] = COLUMNS) -> Html:
    """Return answers as a table of some of `COLUMNS`, in their order."""
    if not rows:
        return quiet(none)
    cells = ([_cell(row, column) for column in columns] for row in rows)
    body = (element("tr", element("th", row[0], scope="row"), *row[1:]) for row in cells)
    head = element("tr", *(element("th", column, scope="col") for column in columns))
    made = element("table", element("thead", head), element("tbody", *body), class_="log")
    return element("div", made, class_="scroll")


def _cell(row: SentRow, column: str) -> Html:
    """Return a cell; the first one of a row is its heading, without the element."""
    if column == "at":
        return element("span", moment(row.at_s))
    if column == "reason":
        return element("td", row.reason, class_="why")
    kind = element("span", row.kind, class_=f"status {TONES.get(row.kind, '')}")
    said = {
        "run": element("a", row.run_id, href=f"/log?{urlencode({'run': row.run_id})}"),
        "round": row.round or "-",
        "app": row.app or "-",
        "hash": row.sha256.removeprefix("sha256:")[:HASH_DIGITS] or "-",
        "what": kind,
        "bytes": amount(row.bytes),
        "norm": "-" if row.norm is None else f"{row.norm:.4g}",
        "epsilon": "-" if row.epsilon is None else epsilon_text(row.epsilon),
        "of a record": "-" if row.record_epsilon is None else epsilon_text(row.record_epsilon),
    }
    return element("td", said[column])


def log_filter(run: str, kinds: str) -> Html:
    """Return the form that chooses what of the log is shown, and the links that export it."""
    options = (
        element("option", text, value=value, **({"selected": ""} if value == kinds else {}))
        for value, text in SHOWN_KINDS.items()
    )
    number = element("input", name="run", value=run, inputmode="numeric", maxlength="20")
    chosen = urlencode({"run": run, "kinds": kinds})
    exports = [
        element("a", "CSV", href=f"/log.csv?{chosen}"),
        " ",
        element("a", "JSON lines", href=f"/log.jsonl?{chosen}"),
    ]
    return fragment(
        [
            folded(
                "Choose",
                form(
                    "/log", "Show", "",
                    element("label", "run; empty for all", number),
                    element("label", "what", element("select", *options, name="kinds")),
                    method="get",
                ),
            ),
            element("p", "Export: ", *exports),
        ]
    )  # fmt: skip


def log_part(rows: Sequence[SentRow], *, run: str, kinds: str, whole: bool) -> Html:
    """Return a page of the log; `whole` is whether no older row follows."""
    more = []
    if rows and not whole:
        older = urlencode({"run": run, "kinds": kinds, "before": str(rows[-1].number)})
        more = [element("p", element("a", "Older", href=f"/log?{older}"))]
    columns = COLUMNS if any(row.reason for row in rows) else RESULT_COLUMNS
    none = "Nothing of that kind has left this site."
    return fragment([sent_table(rows, none=none, columns=columns), *more])


def _budget(name: str, spent: float | None, bound: float | None) -> tuple[str, str, str, str]:
    if bound is None:
        return name, epsilon_text(spent), "no limit", "-"
    left = 0.0 if spent is None else max(0.0, bound - spent)
    return name, epsilon_text(spent), f"{bound:g}", f"{left:.4g}"


def _rounds(status: ClientStatus) -> tuple[str, str, str, str]:
    bound = status.rounds_per_day
    of = "no limit" if bound is None else str(bound)
    left = "-" if bound is None else str(max(0, bound - status.rounds_today))
    return "rounds today (UTC)", str(status.rounds_today), of, left
