"""The dashboard's pages: who gets which, what they say, and what a hostile page or name gets out of it."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from daemon_house import House, in_a_house
from starlette.testclient import TestClient

from meadow.pages.sessions import Sessions
from meadow.pages.web import HEADERS, Browsers
from meadow.server.daemon.server_dir import AdminIdentity
from meadow.server.pages.remote_server import RemoteServer
from meadow.server.pages.web import PAGES, server_app
from meadow.server.remote.connection import connected
from meadow.transport.invitation import Invitation

HOST = "127.0.0.1:9480"
HOSTILE = "<script>alert(1)</script>\u202e"
ROUNDS = 30
ALLOWED = {
    ("GET", "/"): "viewer operator administrator",
    ("GET", "/runs"): "viewer operator administrator",
    ("GET", "/runs/{run:int}"): "viewer operator administrator",
    ("GET", "/sites"): "viewer operator administrator",
    ("GET", "/events"): "viewer operator administrator",
    ("POST", "/runs"): "operator administrator",
    ("GET", "/runs/{run:int}/stop"): "operator administrator",
    ("POST", "/runs/{run:int}/stop"): "operator administrator",
    ("GET", "/runs/{run:int}/resume"): "operator administrator",
    ("POST", "/runs/{run:int}/resume"): "operator administrator",
    ("GET", "/sites/{site}/tags"): "operator administrator",
    ("POST", "/sites/{site}/tags"): "operator administrator",
    ("GET", "/sites/{site}/revoke"): "administrator",
    ("POST", "/sites/{site}/revoke"): "administrator",
    ("POST", "/invite"): "administrator",
}


@dataclass
class Browser:
    """A browser, and the pages that it was invited to."""

    client: TestClient
    sessions: Sessions
    link: str

    def enter(self) -> Browser:
        """Use the link."""
        assert self.client.get(self.link, follow_redirects=False).status_code == 303
        return self

    def get(self, path: str) -> str:
        """Return a page's text."""
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def post(self, path: str, **fields: str) -> str:
        """Send the form of a page, and return the page that follows."""
        answer = self.client.post(path, data={"form_key": self.form_key(), **fields})
        assert answer.status_code == 200, answer.text
        return answer.text

    def form_key(self) -> str:
        """Return what forms of this session must send."""
        found = re.search(r'name="form_key" value="([^"]+)"', self.get("/events"))
        assert found is not None
        return found[1]


@contextmanager
def browser(house: House, folder: Path, name: str, apps: Path | None = None) -> Iterator[Browser]:
    """Open the pages for somebody with a role, "admin" for the folder's own administrator."""
    identity = (
        house.home.admin() if name == "admin" else AdminIdentity.read(folder / f"{name}.json")
    )
    with connected(identity) as stub:
        server, sessions = RemoteServer(stub, identity), Sessions(clock=lambda: 0.0)
        link = f"/enter/{sessions.new_link()}"
        browsers = Browsers(sessions, frozenset({HOST}), lambda: None, lambda: False)
        app = server_app(server, browsers, apps=apps)
        with closing(server):
            yield Browser(TestClient(app, base_url=f"http://{HOST}"), sessions, link)


def beside(tmp_path: Path, seen: Callable[[House], None], *, status: str = "failed") -> None:
    """Run what a person does beside a daemon that has three sites and a run of `ROUNDS` rounds."""

    async def scenario(house: House) -> None:
        journal = house.daemon._journal
        (tmp_path / "server" / "runs" / str(house.run_id)).mkdir(parents=True)
        for name in ("hospital-a", "hospital-b", "hospital-c"):
            journal.sites.invite(name, f"hash-{name}", now_s=1.0, expires_at_s=1e12)
        for number in range(1, ROUNDS + 1):
            row = {
                "round": number, "clients": 3, "failures": 1, "duration_s": 0.5,
                "bytes_sent": 3000, "bytes_received": 2000, "train": {"loss": 1 / number},
                "evaluate": {HOSTILE: 0.5}, "privacy": {"epsilon": number / 10, "delta": 1e-6},
            }  # fmt: skip
            record(house, "round_committed", row, number)
        node = journal.sites.all()[0].node_id
        record(house, "client_failed", {"round": 3, "client": node, "reason": HOSTILE})
        record(house, "privacy_budget", {"epsilon_max": 4.0, "delta": 1e-6})
        record(house, "app_raised", {"reason": HOSTILE, "log": HOSTILE})
        journal.runs.status(house.run_id, status, cause=HOSTILE, now_s=5.0)
        for each in ("viewer", "operator", "administrator"):
            house.home.add_role(
                each, each, tmp_path / f"{each}.json", days=1.0, now=datetime.now(UTC)
            )
        await asyncio.to_thread(seen, house)

    in_a_house(tmp_path / "server", scenario)


def record(house: House, kind: str, detail: dict[str, object], number: int = 0) -> None:
    """Write an event of the run."""
    events = house.daemon._journal.events
    events.record(house.run_id, kind, json.dumps(detail), now_s=2.0, round=number)


def filled(path: str, house: House) -> str:
    """Return a path of the table with a run and a site that there are."""
    return path.replace("{run:int}", str(house.run_id)).replace("{site}", "hospital-a")


def test_every_page_by_everybody(tmp_path: Path) -> None:
    """Each cell of the table; whoever has no session gets a sentence, and nothing else."""
    assert {(page.method, page.path) for page in PAGES} == set(ALLOWED)

    def seen(house: House) -> None:
        for role in ("viewer", "operator", "administrator"):
            with browser(house, tmp_path, role) as opened:
                for method, path in [
                    *ALLOWED,
                    ("GET", "/style.css"),
                    ("GET", "/live.js"),
                    ("POST", "/leave"),
                ]:
                    for cookie in ("", "wrong"):
                        answer = opened.client.request(
                            method, filled(path, house), headers={"Cookie": f"meadow={cookie}"}
                        )
                        assert answer.status_code == 403, (role, path)
                        assert answer.text == "Open the link that `meadow server page` prints.\n"
                opened.enter()
                for (method, path), roles in ALLOWED.items():
                    allowed = role in roles.split()
                    if method == "GET":
                        code = opened.client.get(filled(path, house)).status_code
                        assert code == (200 if allowed else 403), (role, path)
                    elif not allowed:
                        data = {"form_key": opened.form_key()}
                        code = opened.client.post(filled(path, house), data=data).status_code
                        assert code == 403, (role, path)
                text = (
                    opened.get("/sites") + opened.get("/runs") + opened.get(f"/runs/{house.run_id}")
                )
                assert ("Invite a site" in text) == (role == "administrator")
                assert ("Submit an app" in text or "--apps" in text) == (role != "viewer")
                assert ("/resume" in text) == (role != "viewer")
        assert house.daemon._journal.runs.get(house.run_id).status == "failed"  # type: ignore[union-attr]

    beside(tmp_path, seen)


def test_nothing_is_done_by_a_foreign_page(tmp_path: Path) -> None:
    """A form needs the key of its session; another name for this address, and a used link, get nothing."""

    def seen(house: House) -> None:
        site = "/sites/hospital-a/revoke"
        with browser(house, tmp_path, "admin") as one, browser(house, tmp_path, "admin") as two:
            assert one.client.get("/", headers={"Host": "evil.example"}).status_code == 421
            assert one.client.get(one.link, headers={"Host": "evil.example"}).status_code == 421
            one.enter(), two.enter()
            assert one.client.get(one.link).status_code == 403
            assert (
                "SameSite=strict"
                in two.client.get(
                    f"/enter/{two.sessions.new_link()}", follow_redirects=False
                ).headers["set-cookie"]
            )
            for data in ({}, {"form_key": ""}, {"form_key": two.form_key()}):
                assert one.client.post(site, data=data).status_code == 403
            assert one.client.post(site, content=b"x" * 70_000).status_code == 413
            assert one.client.post(site, content=b"&".join([b"a=b"] * 100)).status_code == 400
            one.get(site)
            assert [each.revoked_at_s for each in house.daemon._journal.sites.all()] == [None] * 3
            for path in ("/", "/nothing", "/runs/77", site, "/runs/x"):
                answer = one.client.get(path)
                assert {**answer.headers, **{k.lower(): v for k, v in HEADERS.items()}} == {
                    **answer.headers
                }
            one.post("/leave")
            assert one.client.get("/").status_code == 403

    beside(tmp_path, seen)


def test_what_pages_say(tmp_path: Path) -> None:
    """Curves, the last rounds, failures with names; every text of a peer is a text."""

    def seen(house: House) -> None:
        with browser(house, tmp_path, "viewer") as opened:
            opened.enter()
            run = opened.get(f"/runs/{house.run_id}")
            assert run.count("<polyline") == 5 and "3 of 4 at delta 1e-06" in run
            assert "round 3: hospital-a failed: &lt;script&gt;" in run
            assert "90.0 kB" in run and "60.0 kB" in run and f">{ROUNDS}</th>" in run
            sites, events = opened.get("/sites"), opened.get("/events")
            assert "hospital-b" in sites and "started" in events
            for text in (run, sites, events, opened.get("/"), opened.get("/runs")):
                assert "<script>" not in text and "\u202e" not in text and " style=" not in text
                assert not re.findall(r'(?:href|src|action)="(?!/|#)', text)
                assert text.count("<script ") == 1 and "viewer" in text
            assert "there is no run 77" in opened.client.get("/runs/77").text
            record(house, "round_committed", {"round": ROUNDS + 1, "clients": 2}, ROUNDS + 1)
            assert f">{ROUNDS + 1}</th>" in opened.get(f"/runs/{house.run_id}")
            house.home.revoke_role("viewer")
            answer = opened.client.get("/")
            assert answer.status_code == 403 and "revoked" in answer.text

    beside(tmp_path, seen)


def test_actions(tmp_path: Path) -> None:
    """Each is asked first, done by the server, and in its audit log with the name of who did it."""
    app = tmp_path / "apps" / "broken"
    app.mkdir(parents=True)
    (app / "meadow.toml").write_text("[run]\nrounds = 3\n")
    (app / "task.py").write_text("task = None\n")

    def seen(house: House) -> None:
        number, journal = house.run_id, house.daemon._journal
        with browser(house, tmp_path, "administrator", tmp_path / "apps") as opened:
            opened.enter()
            opened.post("/sites/hospital-a/tags", tags="  eu   gpu ")
            assert "eu gpu" in opened.get("/sites")
            assert "Revoke hospital-a?" in opened.get("/sites/hospital-a/revoke")
            opened.post("/sites/hospital-a/revoke")
            assert journal.sites.get("hospital-a").revoked_at_s is not None  # type: ignore[union-attr]
            assert f"Stop run {number}?" in opened.get(f"/runs/{number}/stop")
            opened.post(f"/runs/{number}/stop")
            assert journal.runs.get(number).status == "stopped"  # type: ignore[union-attr]
            invitation = opened.post("/invite", site="hospital-d", hours="2")
            line = re.findall(r'<pre tabindex="0">([^<]+)</pre>', invitation)[0]
            token = Invitation.from_text(line).token
            assert [each.name for each in journal.sites.tokens()][-1] == "hospital-d"
            key = opened.form_key()
            for site, hours, said in (("Bad Name", "2", "Bad Name"), ("x", "0", "hours"), ("x", "nan", "hours"),
                                ("x", "", "number"), ("x", "1e300", "hours")):  # fmt: skip
                data = {"form_key": key, "site": site, "hours": hours}
                answer = opened.client.post("/invite", data=data)
                assert answer.status_code == 409 and said in answer.text, (site, hours)
            for name in ("../x", "none", ""):
                data = {"form_key": key, "app": name}
                assert opened.client.post("/runs", data=data).status_code == 409
            data = {"form_key": key, "app": "broken", "settings": "run.rounds=0\n"}
            answer = opened.client.post("/runs", data=data)
            assert answer.status_code == 409 and "run.rounds" in answer.text
            assert (
                f"run {number + 1}"
                in opened.post("/runs", app="broken", settings="run.rounds=2").lower()
            )
            lines = house.home.audit_log().lines(1000)
            done = {(line["who"], line["call"]) for line in lines if line["outcome"] == "ok"}
            calls = ("Tag", "Revoke", "Stop", "Invite", "Submit")
            assert {("administrator", f"Admin.{call}") for call in calls} <= done
            assert token not in json.dumps(lines) and len(token) > 20

    beside(tmp_path, seen, status="running")


@pytest.mark.parametrize(
    "values", [[float("nan")], [], [1.0], [2.0, 2.0], [0.0, 0.0], [-1e300, 1e300]]
)
def test_curves_of_odd_values(values: list[float]) -> None:
    """They are drawn or left out, and raise nothing."""
    from meadow.server.pages.curves import curve

    drawn = curve("x", list(enumerate(values, start=1)))
    assert "nan" not in drawn.replace("figcaption", "") and "inf" not in drawn
    assert bool(drawn) == any(math.isfinite(value) for value in values)


def test_a_long_curve_keeps_its_extremes() -> None:
    """A page of many rounds stays small, and hides no outlier."""
    from meadow.server.pages.curves import POINTS_MAX, curve

    points = [(number, 1.0) for number in range(20_000)]
    points[7777] = (7777, 50.0)
    drawn = curve("loss", points)
    assert drawn.count(",") <= POINTS_MAX + 10 and ">60</text>" in drawn
