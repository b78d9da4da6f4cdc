"""What all pages have: their frame, and the small parts. Every text is escaped, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping

from ..reports.markup import Html, element, fragment

__all__ = ["asked", "back", "facts", "folded", "form", "page", "quiet"]


def page(
    title: str,
    *,
    links: Mapping[str, str],
    who: str,
    about: str,
    lost: str,
    live: Html | None,
    content: Html,
    form_key: str,
) -> Html:
    """Return a whole page.

    `links` are the pages by name; `who` is said beside them, with more `about` it. `live` is the part that is
    renewed while the page is open, and `lost` what is said when it cannot be.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} - Meadow"),
        element("link", rel="stylesheet", href="/style.css"),
        element("script", src="/live.js", defer=""),
    )
    shown = [
        element("a", name, href=path, **({"aria_current": "page"} if name == title else {}))
        for name, path in links.items()
    ]
    leave = form("/leave", "Sign out", form_key, class_="leave")
    top = element(
        "header",
        element("a", "Skip to the content", href="#content", class_="skip"),
        element("nav", element("strong", "Meadow"), *shown, aria_label="pages"),
        element("div", element("span", who, class_="who", title=about), leave),
    )
    parts = [element("h1", title), content]
    if live is not None:
        parts.append(element("p", lost, id="lost", class_="bad", role="status", hidden=""))
        parts.append(element("div", live, id="live"))
    body = element("body", top, element("main", *parts, id="content"))
    return Html(f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n")


def form(
    action: str, button: str, form_key: str, *fields: Html, method: str = "post", class_: str = ""
) -> Html:
    """Return a form with one button."""
    key = element("input", type="hidden", name="form_key", value=form_key)
    kept = [key] if method == "post" else []
    return element(
        "form", *kept, *fields, element("button", button, type="submit"),
        action=action, method=method, class_=class_,
    )  # fmt: skip


def asked(text: str, path: str, button: str, form_key: str) -> Html:
    """Return what confirms an action of this path, or goes back to where it was begun."""
    sure = form(path, button, form_key, class_="across")
    return fragment([element("p", text), sure, back(path.rpartition("/")[0] or "/")])


def folded(title: str, content: Html) -> Html:
    """Return a part that is opened by its title."""
    return element("details", element("summary", title), content)


def facts(facts: Mapping[str, str]) -> Html:
    """Return names with their values."""
    pairs = (
        element("div", element("dt", name), element("dd", value)) for name, value in facts.items()
    )
    return element("dl", *pairs)


def quiet(text: str) -> Html:
    """Return a remark."""
    return element("p", text, class_="note")


def back(path: str) -> Html:
    """Return a link to the page before."""
    return element("p", element("a", "Back", href=path))
