"""The agents that are connected now, and those that will be back within their lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from ...errors import LimitError, ProtocolError
from ...transport import fleet_pb2 as pb
from ...transport.relaying import LEAF_BITS, LEAVES_MAX, is_below
from ..journal.site_table import SiteRow

__all__ = ["OUTGOING_MAX", "RELAY_MARK", "AgentLink", "AgentRegistry"]

OUTGOING_MAX = 1024
RELAY_MARK = " relay"
"""What follows a relay's version, also in the table of sites: a server that has restarted knows by it."""


class AgentLink:
    """One agent's stream: a bounded queue of messages to it."""

    def __init__(self, node_id: int, name: str, *, relay: bool = False) -> None:
        self.node_id = node_id
        self.name = name
        self.relay = relay
        self.outgoing: asyncio.Queue[pb.ServerMessage | None] = asyncio.Queue(OUTGOING_MAX)
        self.closed_because: str | None = None
        self.on_close: Callable[[], object] = lambda: None
        """Called when the stream is to end, even if its agent has stopped reading."""

    def send(self, message: pb.ServerMessage) -> None:
        """Queue a message; if the queue is full, the agent is disconnected."""
        if self.closed_because is not None:
            return
        try:
            self.outgoing.put_nowait(message)
        except asyncio.QueueFull:
            self.close("it does not read what it is sent")

    def close(self, reason: str) -> None:
        """End the stream after its queued messages; `reason` is sent to the agent."""
        if self.closed_because is None:
            self.closed_because = reason
            if self.outgoing.full():
                self.outgoing.get_nowait()
            self.outgoing.put_nowait(None)
            self.on_close()


class AgentRegistry:
    """All sites by node id: enrolled, connected, or away within their lease."""

    def __init__(
        self, sites: Iterable[SiteRow], *, lease_s: float, clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._links: dict[int, AgentLink] = {}
        self._away_until_s: dict[int, float] = {}
        self._sites: dict[str, SiteRow] = {}
        self._leaves: dict[int, tuple[int, ...]] = {}
        """By relay: the clients below it; none until it has said who they are."""
        self._names: dict[int, str] = {}
        """By node: the name of its site."""
        self._admitted: set[int] = set()
        """The nodes of the sites that have a certificate and are not revoked."""
        self._listeners: set[Callable[[], None]] = set()
        for site in sites:
            self.update(site)
            if site.version.endswith(RELAY_MARK):
                self._leaves[site.node_id] = ()
            if site.connected and site.revoked_at_s is None:
                self._away_until_s[site.node_id] = clock() + lease_s

    def update(self, site: SiteRow) -> None:
        """Store a site's row of the journal."""
        self._sites[site.name] = site
        self._names[site.node_id] = site.name
        if site.serial and site.revoked_at_s is None:
            self._admitted.add(site.node_id)
        else:
            self._admitted.discard(site.node_id)
        self._changed()

    def site(self, name: str) -> SiteRow | None:
        """Return a site's row, None if there is no such site."""
        return self._sites.get(name)

    def sites(self) -> list[SiteRow]:
        """Return all sites' rows."""
        return list(self._sites.values())

    def links(self) -> list[AgentLink]:
        """Return the streams of the agents that are connected now."""
        return list(self._links.values())

    @property
    def enrolled(self) -> int:
        """The number of sites that have a certificate and are not revoked."""
        return len(self._admitted)

    @property
    def connected(self) -> int:
        """The number of agents that are connected now."""
        return len(self._links)

    def get(self, node_id: int) -> AgentLink | None:
        """Return an agent's stream, if it is connected."""
        return self._links.get(node_id)

    def add(self, link: AgentLink) -> None:
        """Add a connected agent; an older stream of the same client is closed."""
        old = self._links.get(link.node_id)
        if old is not None:
            old.close("the same client connected again")
        self._links[link.node_id] = link
        self._away_until_s.pop(link.node_id, None)
        if link.relay:
            self._leaves.setdefault(link.node_id, ())
        else:
            self._leaves.pop(link.node_id, None)
        self._changed()

    def set_leaves(self, link: AgentLink, node_ids: Collection[int]) -> None:
        """Store the clients that a relay has at present.

        Raises:
            ProtocolError: the agent is no relay, or they do not belong below it.
            LimitError: they are too many.
        """
        if len(node_ids) > LEAVES_MAX:
            raise LimitError(f"{link.name} has {len(node_ids)} clients, more than {LEAVES_MAX}")
        own = self._names
        wrong = next(
            (node for node in node_ids if node in own or not is_below(node, link.node_id)), None
        )
        if not link.relay or wrong is not None:
            raise ProtocolError(f"{link.name} has no client {wrong} below it")
        self._leaves[link.node_id] = tuple(sorted(set(node_ids)))
        self._changed()

    def relays(self) -> list[int]:
        """Return the nodes that were relays when they last connected."""
        return list(self._leaves)

    def is_relay(self, node_id: int) -> bool:
        """Return whether a node was a relay when it last connected."""
        return node_id in self._leaves

    def remove(self, link: AgentLink, *, revoked: bool = False) -> bool:
        """Remove an agent's ended stream. False if a newer stream has replaced it."""
        if self._links.get(link.node_id) is not link:
            return False
        del self._links[link.node_id]
        if not revoked:
            self._away_until_s[link.node_id] = self._clock() + self._lease_s
            asyncio.get_running_loop().call_later(self._lease_s + 0.1, self._changed)
        self._changed()
        return True

    def cut_off(self, node_id: int, reason: str) -> None:
        """Close a client's stream and drop its lease."""
        self._away_until_s.pop(node_id, None)
        link = self._links.get(node_id)
        if link is not None:
            link.close(reason)
            self.remove(link, revoked=True)

    def available(self, tags: Collection[str] = ()) -> list[int]:
        """Return the clients that are connected or within their lease, and have all of these tags.

        Clients below a relay are there while the relay is, and have its tags.
        """
        now_s = self._clock()
        away = [node for node, until_s in self._away_until_s.items() if until_s > now_s]
        present = {*self._links, *away}
        if tags:
            present &= {site.node_id for site in self._sites.values() if site.tags.issuperset(tags)}
        behind = [self._leaves[node] for node in present & self._leaves.keys()]
        return sorted((present - self._leaves.keys()).union(*behind))

    def behind(self, tags: Collection[str] = ()) -> list[int]:
        """Return the clients that relays with all of these tags had when they last said so.

        It can be called from any thread.
        """
        found: list[int] = []
        for relay, leaves in list(self._leaves.items()):
            if relay in self._admitted and self._sites[self._names[relay]].tags.issuperset(tags):
                found += leaves
        return found

    def relay_of(self, node_id: int) -> int:
        """Return the relay of this server that a client belongs behind, 0 for a client of its own."""
        relay = node_id >> LEAF_BITS
        while relay and relay not in self._names:
            relay >>= LEAF_BITS
        return 0 if node_id in self._names else relay

    def names_of(self, node_ids: Iterable[int]) -> list[str]:
        """Return the names of sites; of a client below a relay, the relay's and its number there."""

        def below(node_id: int) -> str:
            relay = self.relay_of(node_id)
            return f"{self._names.get(relay, '')}/{node_id}" if relay else ""

        return [self._names.get(node_id) or below(node_id) for node_id in node_ids]

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever `available()` may have changed; return how to unsubscribe."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def close_all(self, reason: str) -> None:
        """Close every stream."""
        for link in list(self._links.values()):
            link.close(reason)

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()
