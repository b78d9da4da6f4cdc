"""Relays at the server above them: whom they have, and who is drawn, asked and named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meadow.errors import LimitError, ProtocolError
from meadow.server.daemon.agent_registry import RELAY_MARK, AgentLink, AgentRegistry
from meadow.server.journal.journal import Journal
from meadow.server.journal.site_table import SiteRow
from meadow.transport import fleet_pb2 as pb
from meadow.transport.relaying import LEAVES_MAX, clients_behind, is_below, leaf_ids_from
from meadow.transport.run_sites import index_of, pack_sites

FIRST = leaf_ids_from(2) or 0
DEEP = leaf_ids_from(FIRST) or 0


def site(node: int, name: str, *, tags: str = "", version: str = "") -> SiteRow:
    """Return an enrolled site."""
    return SiteRow(
        node_id=node, name=name, serial="s", previous_serial=None, certificate_until_s=1e9,
        connected=True, seen_at_s=0.0, revoked_at_s=None, version=version,
        tags=frozenset(tags.split()),
    )  # fmt: skip


def registry(*, restarted: bool = False) -> AgentRegistry:
    """Return the sites a (1) and north (2, a relay), connected unless the server has restarted."""
    sites = [site(1, "a"), site(2, "north", tags="hospital", version="0.1.0" + RELAY_MARK)]
    made = AgentRegistry(sites, lease_s=5.0, clock=lambda: 0.0)
    if not restarted:
        made.add(AgentLink(1, "a"))
        made.add(AgentLink(2, "north", relay=True))
    return made


def test_clients_behind_a_relay_are_drawn_in_its_place() -> None:
    """The relay is no client; those below it have its tags, and a name that says where they are."""
    agents = registry()
    assert agents.available() == [1]
    link = agents.get(2)
    assert link is not None
    agents.set_leaves(link, [FIRST + 1, FIRST, DEEP])
    assert agents.available() == [1, FIRST, FIRST + 1, DEEP]
    assert agents.available(["hospital"]) == [FIRST, FIRST + 1, DEEP]
    assert [agents.relay_of(node) for node in agents.available()] == [0, 2, 2, 2]
    assert agents.names_of([1, FIRST]) == ["a", f"north/{FIRST}"]
    agents.set_leaves(link, [])
    assert agents.available() == [1]


def test_a_server_that_has_restarted_knows_its_relays() -> None:
    """Until a relay is back it has no clients, and it is not taken for one itself."""
    agents = registry(restarted=True)
    assert agents.available() == [1]
    assert agents.relays() == [2] and agents.relay_of(FIRST) == 2


def test_a_site_that_is_a_relay_no_more_is_a_client() -> None:
    """What an agent says when it connects is what counts."""
    agents = registry()
    agents.add(AgentLink(2, "north"))
    assert agents.available() == [1, 2] and agents.relays() == []


@pytest.mark.parametrize("node", [0, 1, 2, 3, leaf_ids_from(1), (1 << 64) - 1])
def test_a_relay_says_whom_it_has(node: int) -> None:
    """Only nodes whose ids begin with its own, and so many."""
    agents = registry()
    link, plain = agents.get(2), agents.get(1)
    assert link is not None and plain is not None
    with pytest.raises(ProtocolError, match=f"north has no client {node} below it"):
        agents.set_leaves(link, [FIRST, node])
    with pytest.raises(ProtocolError, match="a has no client"):
        agents.set_leaves(plain, [])
    with pytest.raises(LimitError):
        agents.set_leaves(link, range(FIRST, FIRST + LEAVES_MAX + 1))
    agents.set_leaves(link, range(FIRST, FIRST + LEAVES_MAX))


def test_a_node_is_not_two_sites() -> None:
    """A server with more than a million sites of its own has ids that could be below a relay."""
    agents = registry()
    agents.update(site(FIRST, "late"))
    link = agents.get(2)
    assert link is not None and agents.relay_of(FIRST) == 0
    with pytest.raises(ProtocolError, match=f"no client {FIRST}"):
        agents.set_leaves(link, [FIRST])


def test_a_list_of_millions_stays_a_bitmap() -> None:
    """A bit a site, however long the ids are, as long as most of them are there."""
    packed = pack_sites(range(1, 3_000_001))
    assert len(packed.bitmap) == 375_000 and not packed.joined


def test_ids_below() -> None:
    """Two levels of relays fit; what is below a relay below is below."""
    assert is_below(FIRST, 2) and is_below(DEEP, 2) and is_below(DEEP, FIRST)
    assert not is_below(2, 2 << 20) and not is_below(0, 0) and not is_below(5, 0)
    assert leaf_ids_from((1 << 40) - 1) is not None and leaf_ids_from(1 << 60) is None


def test_a_relays_sites_are_numbered_below_it(tmp_path: Path) -> None:
    """From the first invitation on, once; a folder with other sites is refused."""
    journal = Journal(tmp_path / "journal.sqlite")
    assert journal.sites.number_from(FIRST)
    assert journal.sites.invite("b", "hash", now_s=0.0, expires_at_s=1.0) == FIRST
    assert journal.sites.invite("c", "hash2", now_s=0.0, expires_at_s=1.0) == FIRST + 1
    assert journal.sites.number_from(FIRST)
    assert not journal.sites.number_from(leaf_ids_from(3) or 0)
    journal.close()


def test_sites_of_a_tree_have_indices() -> None:
    """Relays have none; long ids follow the others in the list, in order."""
    packed = pack_sites([1, FIRST, FIRST + 1, DEEP])
    assert packed.count == 4 and len(packed.bitmap) == 1
    found = [index_of(n, packed.bitmap, packed.joined) for n in (1, FIRST, FIRST + 1, DEEP, 2)]
    assert found == [0, 1, 2, 3, None]


def test_runs_of_a_tree_have_no_relays_among_their_sites(tmp_path: Path) -> None:
    """The sites of a run are those that train."""
    journal = Journal(tmp_path / "journal.sqlite")
    for name in ("a", "north"):
        journal.sites.invite(name, name, now_s=0.0, expires_at_s=1.0)
        journal.sites.certify(name, "serial", shown=None, until_s=1.0)
    run = journal.runs.submit("app", "sha", "[]", now_s=0.0)
    sites = journal.runs.sites(run, tags=(), asked=[1, FIRST, DEEP], relays=[2])
    assert sites == [1, FIRST, DEEP]
    journal.close()


def test_a_secret_sample_is_not_in_the_list_of_sites(tmp_path: Path) -> None:
    """Clients behind relays are sites from the first step on, drawn or not, as clients enrolled here
    are: whom a round asked is not to be seen in what it announces."""
    journal = Journal(tmp_path / "journal.sqlite")
    for name in ("a", "north"):
        journal.sites.invite(name, name, now_s=0.0, expires_at_s=1.0)
        journal.sites.certify(name, "serial", shown=None, until_s=1.0)
    run = journal.runs.submit("app", "sha", "[]", now_s=0.0)
    agents = registry()
    link = agents.get(2)
    assert link is not None
    agents.set_leaves(link, [FIRST, FIRST + 1])

    def sites(asked: list[int]) -> list[int]:
        return journal.runs.sites(
            run, tags=(), asked=asked, by_sampling=True, relays=[2], behind=agents.behind()
        )

    assert sites([FIRST + 1]) == sites([]) == [1, FIRST, FIRST + 1]
    agents.set_leaves(link, [FIRST + 2])
    assert sites([1]) == [1, FIRST, FIRST + 1, FIRST + 2]
    journal.close()


def test_whom_relays_have() -> None:
    """Those of relays with the tags, whether or not the relay is connected; a revoked one has none."""
    agents = registry()
    link = agents.get(2)
    assert link is not None
    agents.set_leaves(link, [FIRST])
    assert agents.behind() == agents.behind(["hospital"]) == [FIRST]
    assert agents.behind(["clinic"]) == []
    gone = site(2, "north", tags="hospital", version="0.1.0" + RELAY_MARK)
    agents.update(replace(gone, revoked_at_s=0.0))
    assert agents.behind() == []


def test_other_envelopes_stand_for_nobody_else() -> None:
    """Only a relay's record says so."""
    assert clients_behind(pb.Envelope()) is None
