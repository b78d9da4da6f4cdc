"""The server's pages: their table, and who may see which.

A browser may do what the certificate may that the pages are served with, and the server decides that again
at every call. Nothing is kept here: a page is made from the server's answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.applications import Starlette

from ...errors import IdentityError, MeadowError
from ...pages.parts import asked, back, folded, form
from ...pages.sessions import BrowserSession
from ...pages.web import Browsers, Face, Fields, Shown, View, make_app
from ...reports.markup import Html, element, fragment
from . import views
from .remote_server import RemoteServer

__all__ = ["PAGES", "Page", "server_app"]

LINKS: Final = {"Overview": "/", "Runs": "/runs", "Sites": "/sites", "Events": "/events"}


class Page(NamedTuple):
    """A page or an action: what makes it, and the call of the server that it stands for."""

    method: str
    path: str
    call: str
    make: Callable[[Pages, Fields, BrowserSession], Shown | str]
    """Returns a page, or where to go next."""


class Pages:
    """Makes the pages of one server."""

    def __init__(self, server: RemoteServer, apps: Path | None) -> None:
        """`apps` is a folder of apps that may be submitted, None for none."""
        self._server = server
        self._apps = apps

    def overview(self, given: Fields, session: BrowserSession) -> Shown:
        server = self._server
        return Shown(
            "Overview",
            lambda: views.overview_part(server.status(), server.runs(), server.events()),
        )

    def runs(self, given: Fields, session: BrowserSession) -> Shown:
        content = Html("")
        if self._server.may("Admin.Submit"):
            content = self._submission(session)
        return Shown("Runs", lambda: views.runs_table(self._server.runs()), content)

    def run(self, given: Fields, session: BrowserSession) -> Shown:
        number = int(given["run"])
        run, _ = self._server.run(number)
        links = []
        for action, states in (("stop", ("queued", "running")), ("resume", ("failed", "stopped"))):
            if self._server.may(f"Admin.{action.title()}") and run.status in states:
                path = f"/runs/{number}/{action}"
                links.append(form(path, f"{action.title()} ...", "", method="get"))
        title = f"Run {number}: {run.app}"
        return Shown(title, lambda: views.run_part(*self._server.run(number)), fragment(links))

    def sites(self, given: Fields, session: BrowserSession) -> Shown:
        server, content = self._server, Html("")
        tags, revoke = server.may("Admin.Tag"), server.may("Admin.Revoke")
        if server.may("Admin.Invite"):
            name = element("input", name="site", required="", autocomplete="off", maxlength="63")
            hours = element("input", name="hours", type="number", value="24", min="1", max="8784")
            fields = (element("label", "name of the site", name), element("label", "hours", hours))
            invite = form("/invite", "Invite", session.form_key, *fields)
            content = folded("Invite a site", invite)
        return Shown(
            "Sites",
            lambda: views.sites_part(server.sites(), may_tag=tags, may_revoke=revoke),
            content,
        )

    def events(self, given: Fields, session: BrowserSession) -> Shown:
        return Shown("Events", lambda: views.events_part(self._server.events()))

    # ------------------------------------------------------------------ actions

    def ask_stop(self, given: Fields, session: BrowserSession) -> Shown:
        number = given["run"]
        text = "It ends at once, wherever it is; its last committed model stays."
        return self._asked(f"Stop run {number}?", text, f"/runs/{number}/stop", "Stop", session)

    def stop(self, given: Fields, session: BrowserSession) -> str:
        self._server.stop(int(given["run"]))
        return f"/runs/{given['run']}"

    def ask_resume(self, given: Fields, session: BrowserSession) -> Shown:
        number = given["run"]
        text = "It goes on after its last committed round."
        path = f"/runs/{number}/resume"
        return self._asked(f"Resume run {number}?", text, path, "Resume", session)

    def resume(self, given: Fields, session: BrowserSession) -> str:
        self._server.resume(int(given["run"]))
        return f"/runs/{given['run']}"

    def submit(self, given: Fields, session: BrowserSession) -> str:
        names = self._app_names()
        if given.get("app") not in names or self._apps is None:
            raise MeadowError(f"there is no app {given.get('app', '')!r:.80} in the folder of apps")
        settings = [line.strip() for line in given.get("settings", "").splitlines() if line.strip()]
        return f"/runs/{self._server.submit(self._apps / given['app'], settings)}"

    def ask_revoke(self, given: Fields, session: BrowserSession) -> Shown:
        site = given["site"]
        text = "It is disconnected and refused from now on; a new token lets it enrol again."
        path = f"/sites/{quote(site, safe='')}/revoke"
        return self._asked(f"Revoke {site}?", text, path, "Revoke", session)

    def revoke(self, given: Fields, session: BrowserSession) -> str:
        self._server.revoke(given["site"])
        return "/sites"

    def ask_tags(self, given: Fields, session: BrowserSession) -> Shown:
        site = given["site"]
        found = next((each for each in self._server.sites() if each.name == site), None)
        if found is None:
            raise MeadowError(f"there is no site {site!r:.80}")
        field = element("input", name="tags", value=" ".join(found.tags), autocomplete="off")
        path, label = f"/sites/{quote(site, safe='')}/tags", "tags, with spaces between them"
        tags = form(path, "Save", session.form_key, element("label", label, field))
        return Shown(f"Tags of {site}", content=fragment([tags, back("/sites")]))

    def tags(self, given: Fields, session: BrowserSession) -> str:
        self._server.tag(given["site"], given.get("tags", "").split())
        return "/sites"

    def invite(self, given: Fields, session: BrowserSession) -> Shown:
        try:
            hours = float(given.get("hours", ""))
        except ValueError:
            raise MeadowError("hours must be a number") from None
        site = given.get("site", "").strip()
        invitation = self._server.invite(site, hours)
        parts = [views.invitation_part(site, invitation), back("/sites")]
        return Shown(f"Invitation of {site}", content=fragment(parts))

    def _asked(
        self, title: str, text: str, path: str, button: str, session: BrowserSession
    ) -> Shown:
        return Shown(title, content=asked(text, path, button, session.form_key))

    def _submission(self, session: BrowserSession) -> Html:
        names = self._app_names()
        if not names:
            text = "meadow server page --apps FOLDER offers the apps of a folder here."
            return element("p", text, class_="note")
        options = (element("option", name, value=name) for name in names)
        app = element("label", "app", element("select", *options, name="app"))
        settings = element("textarea", name="settings", rows="3", placeholder="run.rounds=5")
        label = element("label", "settings, one a line", settings)
        offered = form("/runs", "Submit", session.form_key, app, label)
        return folded("Submit an app", offered)

    def _app_names(self) -> list[str]:
        if self._apps is None:
            return []
        return sorted(path.parent.name for path in self._apps.glob("*/meadow.toml"))


PAGES: Final = (
    Page("GET", "/", "Admin.Status", Pages.overview),
    Page("GET", "/runs", "Admin.Runs", Pages.runs),
    Page("POST", "/runs", "Admin.Submit", Pages.submit),
    Page("GET", "/runs/{run:int}", "Admin.Watch", Pages.run),
    Page("GET", "/runs/{run:int}/stop", "Admin.Stop", Pages.ask_stop),
    Page("POST", "/runs/{run:int}/stop", "Admin.Stop", Pages.stop),
    Page("GET", "/runs/{run:int}/resume", "Admin.Resume", Pages.ask_resume),
    Page("POST", "/runs/{run:int}/resume", "Admin.Resume", Pages.resume),
    Page("GET", "/sites", "Admin.Sites", Pages.sites),
    Page("GET", "/sites/{site}/tags", "Admin.Tag", Pages.ask_tags),
    Page("POST", "/sites/{site}/tags", "Admin.Tag", Pages.tags),
    Page("GET", "/sites/{site}/revoke", "Admin.Revoke", Pages.ask_revoke),
    Page("POST", "/sites/{site}/revoke", "Admin.Revoke", Pages.revoke),
    Page("POST", "/invite", "Admin.Invite", Pages.invite),
    Page("GET", "/events", "Admin.Events", Pages.events),
)
"""Every page and every action. A browser without a session gets none of them."""


def server_app(server: RemoteServer, browsers: Browsers, *, apps: Path | None = None) -> Starlette:
    """Return the application of one server's pages; `apps` as for `Pages`."""
    pages = Pages(server, apps)

    def require(call: str) -> None:
        if not server.may(call):
            raise IdentityError(f"This is not for the role {server.role}.")

    made = [
        View(page.method, page.path, partial(page.make, pages), partial(require, page.call))
        for page in PAGES
    ]
    face = Face(
        command="meadow server page",
        links=LINKS,
        who=f"{server.name}, {server.role}",
        about=f"the server at {server.address}",
        lost="The server does not answer; this page shows what was last known.",
    )
    return make_app(made, face, browsers)
