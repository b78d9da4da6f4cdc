"""The agents that are connected now, and those that will be back within their lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from ...transport import fleet_pb2 as pb
from ..journal.site_table import SiteRow

__all__ = ["OUTGOING_MAX", "AgentLink", "AgentRegistry"]

OUTGOING_MAX = 1024


class AgentLink:
    """One agent's stream: a bounded queue of messages to it."""

    def __init__(self, node_id: int, name: str) -> None:
        self.node_id = node_id
        self.name = name
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
        self._listeners: set[Callable[[], None]] = set()
        for site in sites:
            self.update(site)
            if site.connected and site.revoked_at_s is None:
                self._away_until_s[site.node_id] = clock() + lease_s

    def update(self, site: SiteRow) -> None:
        """Store a site's row of the journal."""
        self._sites[site.name] = site
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
        return sum(1 for s in self._sites.values() if s.serial and s.revoked_at_s is None)

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
        self._changed()

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
        """Return the nodes that are connected or within their lease, and have all of these tags."""
        now_s = self._clock()
        away = [node for node, until_s in self._away_until_s.items() if until_s > now_s]
        present = {*self._links, *away}
        if tags:
            present &= {site.node_id for site in self._sites.values() if site.tags.issuperset(tags)}
        return sorted(present)

    def names_of(self, node_ids: Iterable[int]) -> list[str]:
        """Return the names of sites."""
        names = {site.node_id: site.name for site in self._sites.values()}
        return [names.get(node_id, "") for node_id in node_ids]

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
