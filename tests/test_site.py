"""The documentation's site: every page has a place, links between files become links between pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))
import build as site


def test_every_page_has_a_place(tmp_path: Path) -> None:
    """All pages are staged; a new page of docs/ without a section, a public name without a chapter and a link
    to a missing file stop it."""
    site.stage(tmp_path, notebooks=True)
    index = (tmp_path / "index.md").read_text()
    for source, name in site.pages().items():
        assert (tmp_path / name).is_file(), source
        assert name == "index.md" or name.rpartition(".")[0] in index.split()
    assert "(python.md#trackers)" in index


def test_the_reference_is_made_from_the_code() -> None:
    """Signatures and docstrings, commands with their options, the fields of the wire."""
    api, commands, wire = site.api_page(), site.commands_page(), site.wire_page()
    assert "### meadow.simulate" in api and "- `rounds`: how many rounds" in api
    assert "#### meadow.Run.plot" in api and "object at 0x" not in api
    assert "## meadow server init" in commands and "`--host`" in commands
    assert "| `Hello` | `protocol` | 0 to " in wire and "message Instruction {" in wire


def test_links_between_files_become_links_between_pages(tmp_path: Path) -> None:
    """A file without a page becomes plain text; one that is not there is refused."""
    page = ROOT / "docs" / "simulation.md"
    text = "[a](data.md#x) [b](../examples/secure/README.md) [c](../Makefile) [d](https://e.org) [f](#g)"
    found = site.relinked(text, page, site.pages())
    assert found == "[a](data.md#x) [b](examples/secure.md) c [d](https://e.org) [f](#g)"
    with pytest.raises(SystemExit, match=r"docs/simulation\.md: nowhere\.md leads nowhere"):
        site.relinked("[a](nowhere.md)", page, site.pages())


def test_what_is_wrong_with_a_built_site_is_found(tmp_path: Path) -> None:
    """Links and anchors that lead nowhere, and whatever a browser would fetch from another host."""
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#there">b</a><a href="b.html#gone">b</a><a href="c.html">c</a>'
        '<a href="https://example.org">e</a><script src="https://cdn.example.org/x.js"></script>'
        '<link rel="stylesheet" href="//cdn.example.org/x.css"><img src="data:image/png;base64,AA">'
    )
    (tmp_path / "b.html").write_text('<p id="there">B</p>')
    (tmp_path / "s.css").write_text("@font-face { src: url('https://fonts.example.org/f.woff') }")
    assert list(site.faults(tmp_path)) == [
        "a.html loads https://cdn.example.org/x.js",
        "a.html loads //cdn.example.org/x.css",
        "a.html links to b.html#gone, an anchor that there is not",
        "a.html links to c.html, which there is not",
        "s.css loads from another host",
    ]
