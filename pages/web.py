"""Pages as a web application: how browsers are signed in, and how they are held to what they are given.

A browser is signed in by a one-time link (`sessions.py`). Nothing is kept here: a page is made anew
whenever it is asked for, and its live part whenever that has changed.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from ..errors import IdentityError, MeadowError, UnreachableError
from ..reports.markup import Html, element, fragment
from . import parts
from .assets import LIVE_JS, STYLE_CSS
from .sessions import BrowserSession, Sessions

__all__ = ["HEADERS", "Browsers", "Download", "Face", "Fields", "Shown", "View", "make_app"]

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
"""Of a form, or of a query, and of the page's path."""


class Shown(NamedTuple):
    """What a page shows; its live part is made anew while the page is open."""

    title: str
    live: Callable[[], Html] | None = None
    content: Html = Html("")


class Download(NamedTuple):
    """A file that a browser stores, in pieces."""

    name: str
    media_type: str
    pieces: Iterable[str]


class View(NamedTuple):
    """A page or an action."""

    method: str
    path: str
    make: Callable[[Fields, BrowserSession], Shown | Download | str]
    """Returns a page, a file, or where to go next; called in a thread."""
    require: Callable[[], None] = lambda: None
    """Raises an `IdentityError` for whom it is not; called before a form is read."""


class Face(NamedTuple):
    """What the pages of one program have in common.

    Attributes:
        command: what prints the link that opens them.
        links: the pages by name, that every page links to.
        who: whose they are.
        about: more about that.
        lost: what a page says while its live part cannot be renewed.
    """

    command: str
    links: Mapping[str, str]
    who: str
    about: str
    lost: str


class Browsers(NamedTuple):
    """Who may ask, and how long.

    Attributes:
        sessions: the browsers that are signed in.
        hosts: the values of the header Host that are answered: a name that another site has pointed here is not.
        entered: is called when a link was used up.
        ending: says whether pages that are renewed end.
    """

    sessions: Sessions
    hosts: frozenset[str]
    entered: Callable[[], None]
    ending: Callable[[], bool]


def make_app(views: Sequence[View], face: Face, browsers: Browsers) -> Starlette:
    """Return the application of these pages. A browser without a session gets none of them."""
    sessions = browsers.sessions

    def whole(shown: Shown, live: Html | None, session: BrowserSession) -> Html:
        return parts.page(
            shown.title, links=face.links, who=face.who, about=face.about, lost=face.lost,
            live=live, content=shown.content, form_key=session.form_key,
        )  # fmt: skip

    async def enter(request: Request) -> Response:
        cookie = sessions.enter(request.path_params["secret"])
        if cookie is None:
            raise HTTPException(403, "This link was used already, or is not one of this server's.")
        browsers.entered()
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
            raise HTTPException(403, f"Open the link that `{face.command}` prints.")
        return session

    def route(view: View) -> Route:
        async def answer(request: Request) -> Response:
            session = _session(request)
            view.require()
            fields = {key: str(value) for key, value in request.path_params.items()}
            given = await _form(request, session) if view.method == "POST" else request.query_params
            shown = await run_in_threadpool(view.make, {**given, **fields}, session)
            if isinstance(shown, str):
                return RedirectResponse(shown, 303)
            if isinstance(shown, Download):
                headers = {"Content-Disposition": f'attachment; filename="{shown.name}"'}
                return StreamingResponse(shown.pieces, 200, headers, shown.media_type)
            if "text/event-stream" in request.headers.get("accept", ""):
                cookie = request.cookies.get(COOKIE, "")
                return _renewed(
                    shown, lambda: not browsers.ending() and sessions.find(cookie) is not None
                )
            live = await run_in_threadpool(shown.live) if shown.live else None
            return Response(whole(shown, live, session), media_type="text/html")

        return Route(view.path, answer, methods=[view.method])

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
        content = fragment([element("p", text, class_="bad"), parts.back("/")])
        if (session := sessions.find(request.cookies.get(COOKIE, ""))) is not None:
            body = whole(Shown("That did not work", content=content), None, session)
            return Response(body, status, media_type="text/html")
        return Response(f"{text}\n", status, media_type="text/plain")

    app = Starlette(
        routes=[
            Route("/enter/{secret}", enter),
            Route("/leave", leave, methods=["POST"]),
            asset("/style.css", STYLE_CSS, "text/css"),
            asset("/live.js", LIVE_JS, "text/javascript"),
            *(route(view) for view in views),
        ],
        exception_handlers={HTTPException: failed, MeadowError: failed},
    )
    app.router.redirect_slashes = False
    app.add_middleware(_Guard, hosts=browsers.hosts)
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
