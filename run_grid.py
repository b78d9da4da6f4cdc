"""What every grid of ours has in common: the run that it belongs to, and messages for it."""

from __future__ import annotations

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

__all__ = ["RunGrid"]


class RunGrid(Grid):
    """A Flower Grid that belongs to one run."""

    def __init__(self, run_id: int) -> None:
        self._run = Run.create_empty(run_id)

    def set_run(self, run: Run) -> None:
        """Set the run that this grid belongs to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that this grid belongs to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message for a client."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
