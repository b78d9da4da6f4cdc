"""What a site's own monitoring sees of its agent: instructions, the line, the gate, the budget.

Labels are names of apps that the owner has installed, and numbers of the newest runs in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ...config.client_config import PolicyConfig
from ...transport.metrics_page import MetricsPage, gauge
from ..owner.budget import Spending, epsilon_spent
from ..owner.example_budget import record_epsilon
from ..owner.gate import STATES, Gate
from ..owner.identity_folder import IdentityFolder
from ..owner.ledger import Ledger
from ..owner.owner import Owner
from .assignments import OUTCOMES, Assignments
from .delivery import Deliveries
from .line import LineState
from .training import Trainer

__all__ = ["RUNS_SHOWN", "AgentMonitoring"]

RUNS_SHOWN: Final = 16
"""The runs of the ledger that are shown one by one: those with the newest rounds."""


class AgentMonitoring:
    """Answers a scrape of one agent, from its present state; nothing is done between scrapes."""

    def __init__(
        self,
        *,
        owner: Owner,
        identities: IdentityFolder,
        ledger: Ledger,
        gate: Gate,
        trainer: Trainer,
        assignments: Assignments,
        deliveries: Deliveries,
        line: LineState,
        connections: Callable[[], tuple[int, bool]],
    ) -> None:
        """`connections` returns how many there were since the start, and whether there is one now."""
        self._owner, self._identities, self._ledger = owner, identities, ledger
        self._gate, self._trainer, self._line = gate, trainer, line
        self._assignments, self._deliveries = assignments, deliveries
        self._connections = connections
        self._computed: tuple[list[Spending], float, list[Metric]] | None = None
        self._page = MetricsPage("meadow_agent_info", "The version of the agent", self._families)

    async def scraped(self) -> tuple[bytes, str]:
        """Return the page in Prometheus' text format, and its media type."""
        return await self._page.text()

    def _families(self) -> Iterable[Metric]:
        yield from self._of_work()
        yield from self._of_line()
        memory = self._trainer.resident_bytes()
        yield gauge(
            "meadow_agent_training_process",
            "Whether a training process is warm: it has an app loaded",
            float(memory is not None),
        )
        yield gauge(
            "meadow_agent_training_resident_memory_bytes",
            "Memory of the training process and its children; shared pages count for each",
            memory or 0,
        )
        yield gauge(
            "meadow_agent_certificate_end_timestamp_seconds",
            "When this client's certificate ends; it is renewed while the agent is connected",
            self._identities.load().certificate.not_after.timestamp(),
        )
        policy = self._owner.config().policy
        spent = self._ledger.spent()
        if self._computed is None or self._computed[:2] != (spent, policy.delta):
            self._computed = spent, policy.delta, [*_epsilons(spent, policy.delta)]
        yield from self._computed[2]
        yield from _budget(self._computed[2][0], policy)

    def _of_work(self) -> Iterable[Metric]:
        ended = CounterMetricFamily(
            "meadow_agent_instructions",
            "The server's instructions since the start, by how they ended",
            labels=["outcome"],
        )
        for outcome in OUTCOMES:
            ended.add_metric([outcome], self._assignments.outcomes[outcome])
        yield ended
        yield gauge(
            "meadow_agent_waiting_instructions",
            "Instructions that wait for their execution",
            self._assignments.waiting,
        )
        yield gauge(
            "meadow_agent_waiting_replies",
            "Replies that the server has not confirmed",
            len(self._deliveries.ids()),
        )

    def _of_line(self) -> Iterable[Metric]:
        count, connected = self._connections()
        yield gauge(
            "meadow_agent_connected", "Whether the agent is connected to its server", connected
        )
        for name, text, value in (
            ("connections", "Connections to the server since the start", count),
            (
                "sent_bytes",
                "Bytes of messages and tensors to the server since the start",
                self._line.sent_bytes,
            ),
            (
                "received_bytes",
                "Bytes of messages and tensors from the server since the start",
                self._line.received_bytes,
            ),
        ):
            yield CounterMetricFamily(f"meadow_agent_{name}", text, value=value)
        gate = GaugeMetricFamily(
            "meadow_agent_gate", "1 at the state of the owner's gate", labels=["state"]
        )
        present = self._gate.state()[0]
        for state in STATES:
            gate.add_metric([state], float(state == present))
        yield gate


def _epsilons(spent: list[Spending], delta: float) -> Iterable[Metric]:
    """Yield what was spent in all rounds, then by run; infinite where a round had no noise."""
    total = GaugeMetricFamily(
        "meadow_agent_epsilon",
        "What all rounds on this data have spent, for the client and for one of its examples",
        labels=["of"],
    )
    for of, epsilon in _both(spent, delta):
        total.add_metric([of], epsilon)
    yield total
    each = GaugeMetricFamily(
        "meadow_agent_run_epsilon",
        f"Likewise, of the {RUNS_SHOWN} runs with the newest rounds",
        labels=["app", "run", "of"],
    )
    for one in spent[-RUNS_SHOWN:]:
        for of, epsilon in _both([one], delta):
            each.add_metric([one.app, one.run_id, of], epsilon)
    yield each


def _both(spent: list[Spending], delta: float) -> Iterable[tuple[str, float]]:
    yield "client", epsilon_spent(spent, delta)
    yield "example", record_epsilon([each for one in spent for each in one.releases], delta)


def _budget(total: Metric, policy: PolicyConfig) -> Iterable[Metric]:
    """Yield the owner's budgets, and what is left of them; nothing where there is no limit."""
    budget = GaugeMetricFamily(
        "meadow_agent_epsilon_max", "The owner's budget, where there is one", labels=["of"]
    )
    left = GaugeMetricFamily("meadow_agent_epsilon_left", "What is left of it", labels=["of"])
    bounds = {"client": policy.epsilon_max, "example": policy.record_epsilon_max}
    for sample in total.samples:
        bound = bounds[sample.labels["of"]]
        if bound is not None:
            budget.add_metric([sample.labels["of"]], bound)
            left.add_metric([sample.labels["of"]], max(0.0, bound - sample.value))
    yield budget
    yield left
