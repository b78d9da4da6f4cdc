"""The owner's pages: their table, and what each shows. All that they can do is to pause and to resume."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from starlette.applications import Starlette

from ...errors import MeadowError
from ...pages.parts import asked
from ...pages.sessions import BrowserSession
from ...pages.web import Browsers, Download, Face, Fields, Shown, View, make_app
from ...reports.markup import Html, element, fragment
from ..owner.sent_log import SentRow
from . import views
from .site_folder import LogChoice, SiteFolder, csv_lines, json_lines

__all__ = ["owner_app"]

LINKS: Final = {"Overview": "/", "Log": "/log"}
PAGE_ROWS: Final = 50
LAST_ROWS: Final = 8
Export = Callable[[Iterable[SentRow]], Iterator[str]]


class OwnerPages:
    """Makes the pages of one client's folder."""

    def __init__(self, site: SiteFolder) -> None:
        self._site = site

    def overview(self, given: Fields, session: BrowserSession) -> Shown:
        return Shown("Overview", self._overview)

    def log(self, given: Fields, session: BrowserSession) -> Shown:
        run, kinds, chosen = _chosen(given)
        before = _number(given, "before", digits=18)

        def live() -> Html:
            rows = self._site.rows(chosen, last=PAGE_ROWS + 1, before=before)
            shown = rows[:PAGE_ROWS]
            return views.log_part(shown, run=run, kinds=kinds, whole=len(rows) <= PAGE_ROWS)

        return Shown("Log", live, views.log_filter(run, kinds))

    def export(
        self, name: str, kind: str, write: Export, given: Fields, session: BrowserSession
    ) -> Download:
        _, _, chosen = _chosen(given)
        return Download(name, kind, write(self._site.all_rows(chosen)))

    def ask_pause(self, given: Fields, session: BrowserSession) -> Shown:
        text = (
            "No instruction begins and nothing leaves until you resume, over restarts too. Work that "
            "has begun is finished and kept."
        )
        return Shown("Pause this site?", content=asked(text, "/pause", "Pause", session.form_key))

    def pause(self, given: Fields, session: BrowserSession) -> str:
        self._site.pause()
        return "/"

    def ask_resume(self, given: Fields, session: BrowserSession) -> Shown:
        text = "It connects again, and what your policy allows begins and leaves."
        return Shown(
            "Resume this site?", content=asked(text, "/resume", "Resume", session.form_key)
        )

    def resume(self, given: Fields, session: BrowserSession) -> str:
        self._site.resume()
        return "/"

    def _overview(self) -> Html:
        site = self._site
        state, apps = self._state()
        return fragment(
            [
                state,
                element("h2", "What left last"),
                views.sent_table(
                    site.rows(LogChoice(refused=False), last=LAST_ROWS),
                    columns=views.RESULT_COLUMNS,
                    none="Nothing has left this site.",
                ),
                element("h2", "What was refused or failed last, and why"),
                views.sent_table(
                    site.rows(LogChoice(refused=True), last=LAST_ROWS),
                    columns=views.REFUSED_COLUMNS,
                    none="Nothing was refused.",
                ),
                apps,
            ]
        )

    def _state(self) -> tuple[Html, Html]:
        """Return the state with the budgets, and the apps; a mistake in client.toml hides neither the log nor
        the pause."""
        try:
            status = self._site.status()
            spent = self._site.spending()
        except MeadowError as error:
            path, name = ("/resume", "Resume") if self._site.paused else ("/pause", "Pause")
            change = element("p", element("a", f"{name} ...", href=path))
            return fragment([element("p", str(error), class_="bad"), change]), Html("")
        state = [views.status_part(status), views.budgets_part(status, spent)]
        return fragment(state), views.apps_part(status)


def owner_app(site: SiteFolder, browsers: Browsers, *, name: str) -> Starlette:
    """Return the application of one client's pages."""
    pages = OwnerPages(site)
    face = Face(
        command="meadow client page",
        links=LINKS,
        who=name,
        about=f"the folder {site.directory}",
        lost="The folder cannot be read; this page shows what was last known.",
    )
    table = [
        View("GET", "/", pages.overview),
        View("GET", "/log", pages.log),
        View("GET", "/log.csv", partial(pages.export, "sent.csv", "text/csv", csv_lines)),
        View(
            "GET",
            "/log.jsonl",
            partial(pages.export, "sent.jsonl", "application/jsonl", json_lines),
        ),
        View("GET", "/pause", pages.ask_pause),
        View("POST", "/pause", pages.pause),
        View("GET", "/resume", pages.ask_resume),
        View("POST", "/resume", pages.resume),
    ]
    return make_app(table, face, browsers)


def _chosen(given: Fields) -> tuple[str, str, LogChoice]:
    """Return what a query of the log chooses: its two texts, and what they mean."""
    kinds = given.get("kinds", "")
    if kinds not in views.SHOWN_KINDS:
        raise MeadowError(f"kinds must be one of {list(views.SHOWN_KINDS)}, got {kinds!r:.80}")
    run = _number(given, "run", digits=20)
    refused = {"results": False, "refused": True}.get(kinds)
    return given.get("run", "").strip(), kinds, LogChoice(run, refused)


def _number(given: Fields, name: str, *, digits: int) -> int | None:
    text = given.get(name, "").strip()
    if text and not re.fullmatch(rf"[0-9]{{1,{digits}}}", text):
        raise MeadowError(f"{name} must be a number, got {text!r:.80}")
    return int(text) if text else None
