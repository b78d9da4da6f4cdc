"""Markup: no text becomes a tag, an attribute or a script."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from meadow.reports.markup import Html, element, table


class Heard(HTMLParser):
    """Notes the tags, attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.text += data


@given(text=st.text(), attribute=st.text())
def test_text_stays_text(text: str, attribute: str) -> None:
    """Whatever a text or an attribute holds, a browser reads one element with that text."""
    heard = Heard(element("p", text, title=attribute))
    assert heard.tags == [("p", [("title", printable(attribute))])]
    assert heard.text == printable(text)


def printable(text: str) -> str:
    """Return a text without what HTML does not allow or what turns the text around it."""
    return "".join(mark if mark.isprintable() or mark in "\n\t" else "\ufffd" for mark in text)


def test_html_is_not_escaped_twice() -> None:
    """Elements nest, and only text is escaped; names of Python lose their underscore."""
    inner = element("b", "1 < 2")
    assert element("p", inner, " & more", class_="a b", aria_label="x") == (
        '<p class="a b" aria-label="x"><b>1 &lt; 2</b> &amp; more</p>'
    )
    assert isinstance(inner, Html)


def test_tables_have_headings() -> None:
    """A screen reader hears the column and the line of each cell."""
    made = table(["run", "loss"], [["a", "<1>"]])
    assert '<th scope="col">run</th>' in made and '<th scope="row">a</th>' in made
    assert "<td>&lt;1&gt;</td>" in made
