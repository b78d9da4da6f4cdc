"""The pages as a web application: its table of pages, who may see which, and how browsers are held to it.

A browser is signed in by a one-time link (`sessions.py`). It may do what the certificate may that the
pages are served with, and the server decides that again at every call. Nothing is kept here: a page is
made from the server's answers.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from ...errors import IdentityError, MeadowError, UnreachableError
from ...reports.markup import Html, element, fragment
from . import views
from .assets import LIVE_JS, STYLE_CSS
from .remote_server import RemoteServer
from .sessions import BrowserSession, Sessions

__all__ = ["PAGES", "Page", "make_app"]

COOKIE: Final = "meadow"
FORM_BYTES_MAX: Final = 64 << 10
RENEWED_EVERY_S: Final = 1.0
SILENCE_S: Final = 15.0
"""A live page hears something so often, so that one whose browser has gone is noticed."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Fields = dict[str, str]
"""Of a form, and of the page's path."""


class Shown(NamedTuple):
    """What a page shows; its live part is made anew while the page is open."""

    title: str
    live: Callable[[], Html] | None = None
    content: Html = Html("")


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
                links.append(views.form(path, f"{action.title()} ...", "", method="get"))
        title = f"Run {number}: {run.app}"
        return Shown(title, lambda: views.run_part(*self._server.run(number)), fragment(links))

    def sites(self, given: Fields, session: BrowserSession) -> Shown:
        server, content = self._server, Html("")
        tags, revoke = server.may("Admin.Tag"), server.may("Admin.Revoke")
        if server.may("Admin.Invite"):
            name = element("input", name="site", required="", autocomplete="off", maxlength="63")
            hours = element("input", name="hours", type="number", value="24", min="1", max="8784")
            fields = (element("label", "name of the site", name), element("label", "hours", hours))
            invite = views.form("/invite", "Invite", session.form_key, *fields)
            content = views.folded("Invite a site", invite)
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
        tags = views.form(path, "Save", session.form_key, element("label", label, field))
        return Shown(f"Tags of {site}", content=fragment([tags, _back("/sites")]))

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
        parts = [views.invitation_part(site, invitation), _back("/sites")]
        return Shown(f"Invitation of {site}", content=fragment(parts))

    def _asked(
        self, title: str, text: str, path: str, button: str, session: BrowserSession
    ) -> Shown:
        sure = views.form(path, button, session.form_key, class_="across")
        return Shown(
            title, content=fragment([element("p", text), sure, _back(path.rpartition("/")[0])])
        )

    def _submission(self, session: BrowserSession) -> Html:
        names = self._app_names()
        if not names:
            text = "meadow server page --apps FOLDER offers the apps of a folder here."
            return element("p", text, class_="note")
        options = (element("option", name, value=name) for name in names)
        app = element("label", "app", element("select", *options, name="app"))
        settings = element("textarea", name="settings", rows="3", placeholder="run.rounds=5")
        label = element("label", "settings, one a line", settings)
        offered = views.form("/runs", "Submit", session.form_key, app, label)
        return views.folded("Submit an app", offered)

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


def make_app(
    server: RemoteServer,
    sessions: Sessions,
    *,
    hosts: frozenset[str],
    entered: Callable[[], None],
    ending: Callable[[], bool],
    apps: Path | None = None,
) -> Starlette:
    """Return the application.

    `hosts` are the values of the header Host that are answered: a name that another site has pointed
    here is not. `entered` is called when a link was used up; pages that are renewed end once `ending`
    says so.
    """
    pages = Pages(server, apps)

    async def enter(request: Request) -> Response:
        cookie = sessions.enter(request.path_params["secret"])
        if cookie is None:
            raise HTTPException(403, "This link was used already, or is not one of this server's.")
        entered()
        response = RedirectResponse("/", 303)
        response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return response

    async def leave(request: Request) -> Response:
        await _form(request, _session(request))
        sessions.leave(request.cookies[COOKIE])
        return Response("Signed out. Close this page.\n", media_type="text/plain")

    def _session(request: Request) -> BrowserSession:
        session = sessions.find(request.cookies.get(COOKIE, ""))
        if session is None:
            raise HTTPException(403, "Open the link that `meadow server page` prints.")
        return session

    def route(page: Page) -> Route:
        async def answer(request: Request) -> Response:
            session = _session(request)
            if not server.may(page.call):
                raise HTTPException(403, f"This is not for the role {server.role}.")
            fields = {key: str(value) for key, value in request.path_params.items()}
            if page.method == "POST":
                fields = {**await _form(request, session), **fields}
            shown = await run_in_threadpool(page.make, pages, fields, session)
            if isinstance(shown, str):
                return RedirectResponse(shown, 303)
            if "text/event-stream" in request.headers.get("accept", ""):
                cookie = request.cookies.get(COOKIE, "")
                return _renewed(shown, lambda: not ending() and sessions.find(cookie) is not None)
            live = await run_in_threadpool(shown.live) if shown.live else None
            text = views.page(
                shown.title, who=server.name, role=server.role, address=server.address,
                live=live, content=shown.content, form_key=session.form_key,
            )  # fmt: skip
            return Response(text, media_type="text/html")

        return Route(page.path, answer, methods=[page.method])

    def asset(path: str, text: str, kind: str) -> Route:
        async def answer(request: Request) -> Response:
            _session(request)
            return Response(text, media_type=kind)

        return Route(path, answer)

    def failed(request: Request, error: Exception) -> Response:
        status, text = 409, str(error)
        if isinstance(error, HTTPException):
            status, text = error.status_code, error.detail
        elif isinstance(error, IdentityError):
            status = 403
        elif isinstance(error, UnreachableError):
            status = 503
        content = fragment([element("p", text, class_="bad"), _back("/")])
        if (session := sessions.find(request.cookies.get(COOKIE, ""))) is not None:
            body = views.page(
                "That did not work", who=server.name, role=server.role, address=server.address,
                live=None, content=content, form_key=session.form_key,
            )  # fmt: skip
            return Response(body, status, media_type="text/html")
        return Response(f"{text}\n", status, media_type="text/plain")

    app = Starlette(
        routes=[
            Route("/enter/{secret}", enter),
            Route("/leave", leave, methods=["POST"]),
            asset("/style.css", STYLE_CSS, "text/css"),
            asset("/live.js", LIVE_JS, "text/javascript"),
            *(route(page) for page in PAGES),
        ],
        exception_handlers={HTTPException: failed, MeadowError: failed},
    )
    app.router.redirect_slashes = False
    app.add_middleware(_Guard, hosts=hosts)
    return app


class _Guard:
    """Answers only requests for a host of this server's, and puts `HEADERS` into every answer."""

    def __init__(self, app: Any, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        if headers.get(b"host", b"").decode("latin-1") not in self._hosts:
            await Response("unknown host\n", 421)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


async def _form(request: Request, session: BrowserSession) -> Fields:
    """Return the fields of a form, which must have come from a page of this session."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_BYTES_MAX:
            raise HTTPException(413, f"A form has at most {FORM_BYTES_MAX} bytes.")
    try:
        given = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=32)
    except ValueError:
        raise HTTPException(400, "This is not a form of this server's.") from None
    fields = {name: values[-1] for name, values in given.items()}
    key = fields.pop("form_key", "")
    if not hmac.compare_digest(key.encode(), session.form_key.encode()):
        raise HTTPException(
            403, "This form is not from a page of this session; open the page again."
        )
    return fields


def _renewed(shown: Shown, goes_on: Callable[[], bool]) -> Response:
    """Return the live part of a page as server-sent events, whenever it changes."""
    make = shown.live
    if make is None:
        raise HTTPException(404, "This page does not change.")

    async def stream() -> AsyncIterator[str]:
        last, silent_s = "", 0.0
        while goes_on():
            try:
                text: str = await run_in_threadpool(make)
            except MeadowError as error:
                yield f"event: lost\ndata: {json.dumps(str(error))}\n\n"
            else:
                if text != last:
                    yield f"data: {json.dumps(text)}\n\n"
                    last, silent_s = text, 0.0
            await asyncio.sleep(RENEWED_EVERY_S)
            silent_s += RENEWED_EVERY_S
            if silent_s >= SILENCE_S:
                yield ":\n\n"
                silent_s = 0.0

    return StreamingResponse(stream(), media_type="text/event-stream")


def _back(path: str) -> Html:
    return element("p", element("a", "Back", href=path))
