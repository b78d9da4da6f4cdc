"""The owner's pages: who gets them, what they say, and that a hostile name gets nothing out of them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from meadow.client.owner import gate
from meadow.client.owner.database import AgentDatabase
from meadow.client.owner.ledger import Ledger
from meadow.client.owner.sent_log import Outgoing, SentFor, SentLog
from meadow.client.pages.site_folder import SiteFolder
from meadow.client.pages.web import PAGE_ROWS, owner_app
from meadow.pages.sessions import Sessions
from meadow.pages.web import HEADERS, Browsers
from meadow.privacy.dp.noise_terms import NoiseTerms
from meadow.transport import fleet_pb2 as pb

from ..conftest import Client

HOST = "127.0.0.1:9481"
HOSTILE = "<script>alert(1)</script>\u202e"
FORMULA = '=HYPERLINK("http://evil.example")'
RUN = (1 << 64) - 1
POLICY = "[policy]\nepsilon_max = 5.0\nrounds_per_day = 10\n"
NOW_S = 1_800_000_000.0
PATHS = ("/", "/log", "/log.csv", "/log.jsonl", "/pause", "/resume")


@dataclass
class Owner:
    """An owner's browser, and the folder that it looks at."""

    client: TestClient
    sessions: Sessions
    directory: Path

    def enter(self) -> Owner:
        """Use a link."""
        link = f"/enter/{self.sessions.new_link()}"
        assert self.client.get(link, follow_redirects=False).status_code == 303
        return self

    def get(self, path: str) -> str:
        """Return a page's text."""
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def form_key(self) -> str:
        """Return what forms of this session must send."""
        found = re.search(r'name="form_key" value="([^"]+)"', self.get("/pause"))
        assert found is not None
        return found[1]


@pytest.fixture
def owner(client: Client) -> Owner:
    """The owner of an enrolled client whose log has rows of two runs."""
    client.configure(POLICY)
    client.enroll()
    sessions = Sessions(clock=lambda: 0.0)
    browsers = Browsers(sessions, frozenset({HOST}), lambda: None, lambda: False)
    site = SiteFolder(client.directory, clock=lambda: NOW_S)
    app = owner_app(site, browsers, name="site-1")
    return Owner(TestClient(app, base_url=f"http://{HOST}"), sessions, client.directory)


def fill(directory: Path, count: int) -> None:
    """Write `count` updates of run 7, and a refusal of another with hostile texts."""
    log = SentLog(directory, clock=lambda: NOW_S)
    for number in range(count):
        reply = pb.Reply(instruction_id=f"a{number}")
        reply.envelope.metadata.message_type = "train"
        about = SentFor(
            run_id=7, round=str(number), app="digits", sha256="ab" * 32, norm=1.5, epsilon=0.25
        )
        log.write(Outgoing(reply, about), size_bytes=4_200_000)
    refusal = pb.Reply(instruction_id="b", refused=f"no {HOSTILE}")
    about = SentFor(run_id=RUN, round=FORMULA, app=HOSTILE, sha256=HOSTILE)
    log.write(Outgoing(refusal, about), size_bytes=70)
    log.close()


def test_nobody_else_gets_them(owner: Owner) -> None:
    """A browser without a session, another name for this address, and a form of elsewhere get nothing."""
    for path in (*PATHS, "/style.css", "/live.js"):
        answer = owner.client.get(path)
        assert (answer.status_code, answer.text) == (
            403,
            "Open the link that `meadow client page` prints.\n",
        )
        assert owner.client.get(path, headers={"Host": "evil.example"}).status_code == 421
    assert owner.client.post("/pause").status_code == 403
    owner.enter()
    for data in ({}, {"form_key": ""}, {"form_key": "x" * 43}):
        assert owner.client.post("/pause", data=data).status_code == 403
    assert not gate.is_paused(owner.directory)
    for path in (*PATHS, "/nothing"):
        headers = owner.client.get(path).headers
        assert {**headers, **{k.lower(): v for k, v in HEADERS.items()}} == {**headers}


def test_what_they_say(owner: Owner) -> None:
    """State, budgets and what is left of them, what left, what was refused and why; texts stay texts."""
    database = AgentDatabase(owner.directory / "agent.sqlite")
    asked = pb.Instruction(id="a", run_id=7, app=pb.App(name="digits"))
    Ledger(database).participate(asked, now_s=NOW_S, noise=NoiseTerms(noise_multiplier=50.0))
    database.close()
    fill(owner.directory, 3)
    owner.enter()
    text = owner.get("/")
    assert "not running" in text and "site-1" in text and "counting" in text
    spent = re.search(r"epsilon of this site</th><td>([^<]+)</td><td>5</td><td>([^<]+)</td>", text)
    assert spent is not None
    assert float(spent[1]) + float(spent[2]) == pytest.approx(5.0, abs=2e-3) and float(spent[1]) > 0
    assert "rounds today (UTC)</th><td>1</td><td>10</td><td>9</td>" in text
    assert "epsilon of a single record</th>" in text and "no limit" in text
    assert text.count(">4.2 MB<") == 3 and "no &lt;script&gt;" in text and "ab" * 6 in text
    log = owner.get("/log")
    assert log.count("<tr>") == 5 and str(RUN) in log
    for shown in (text, log):
        assert "<script>" not in shown and "\u202e" not in shown and " style=" not in shown
        assert not re.findall(r'(?:href|src|action)="(?!/|#)', shown)


def test_the_log_in_parts(owner: Owner) -> None:
    """Pages of it, and a choice by run and kind; a wrong choice is refused with its name."""
    fill(owner.directory, 2 * PAGE_ROWS + 5)
    owner.enter()
    seen, path = 0, "/log?run=7"
    while path:
        text = owner.get(path)
        seen += text.count('scope="row"')
        older = re.search(r'href="(/log\?[^"]+)">Older', text)
        path = older[1].replace("&amp;", "&") if older else ""
    assert seen == 2 * PAGE_ROWS + 5
    assert owner.get(f"/log?run={RUN}").count('scope="row"') == 1
    assert owner.get("/log?kinds=refused").count('scope="row"') == 1
    assert "digits" not in owner.get("/log?kinds=refused")
    assert "Nothing of that kind" in owner.get("/log?run=7&kinds=refused")
    for wrong in ("run=x", "run=-1", "before=9e9", "kinds=none", f"before={'9' * 40}"):
        answer = owner.client.get(f"/log?{wrong}")
        assert answer.status_code == 409 and wrong.partition("=")[0] in answer.text


def test_exports(owner: Owner) -> None:
    """Every row, as CSV without formulas and as JSON lines; of a choice, that alone."""
    fill(owner.directory, 1200)
    owner.enter()
    lines = owner.get("/log.jsonl").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["number"] for row in rows] == list(range(1201, 0, -1))
    assert rows[0]["round"] == FORMULA and rows[1]["epsilon"] == 0.25
    table = list(csv.DictReader(io.StringIO(owner.get("/log.csv"), newline="")))
    assert len(table) == 1201 and table[0]["round"] == f"'{FORMULA}"
    assert (table[0]["reason"], table[1]["norm"], table[0]["norm"]) == (f"no {HOSTILE}", "1.5", "")
    assert len(owner.get("/log.jsonl?kinds=refused").splitlines()) == 1
    header = owner.client.get("/log.csv").headers["content-disposition"]
    assert header == 'attachment; filename="sent.csv"'


def test_pause_and_resume(owner: Owner) -> None:
    """Each is asked first; both also work while client.toml has a mistake, which is named."""
    owner.enter()
    assert "Pause ..." in owner.get("/") and "Pause this site?" in owner.get("/pause")
    assert not gate.is_paused(owner.directory)
    answer = owner.client.post("/pause", data={"form_key": owner.form_key()})
    assert gate.is_paused(owner.directory) and "paused by its owner" in answer.text
    (owner.directory / "client.toml").write_text("[policy]\nmin_cohort = 0\n")
    text = owner.get("/")
    assert "min_cohort" in text and "Resume ..." in text and "Nothing has left" in text
    owner.client.post("/resume", data={"form_key": owner.form_key()})
    assert not gate.is_paused(owner.directory)
    (owner.directory / "client.toml").write_text(POLICY)
    assert "Pause ..." in owner.get("/")
