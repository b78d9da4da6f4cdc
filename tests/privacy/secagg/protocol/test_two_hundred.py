"""200 clients in a ring, at every step: as many dropouts as can be, and one more."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from meadow.privacy.secagg.protocol import SecureAggregationError
from meadow.privacy.secagg.protocol.steps import ProtocolStep

CLIENTS = 200


def gone_at(cohort: Any, step: ProtocolStep, spare: int) -> list[str]:
    """Return whom a step can do without, but for `spare` fewer (-1 is one too many).

    They stand far from each other in the ring, unless the step is about one client's neighbours.
    Fewer confirmations would do than clients that unmask: only too few of them end that step.
    """
    topology, graph = cohort.plan.topology, cohort.graph
    if step is ProtocolStep.UNMASK:
        around = graph.neighbours(graph.order[50])
        return [cohort.names[c] for c in around[: topology.neighbours - topology.threshold - spare]]
    few_confirm = step is ProtocolStep.CONFIRM and spare < 0
    count = CLIENTS - topology.quorum if few_confirm else topology.dropout
    order = [cohort.names[client] for client in graph.order]
    spread = [name for start in range(20) for name in order[start::20]]
    return spread[: count - spare]


@pytest.mark.parametrize("step", ProtocolStep)
def test_dropouts_of_two_hundred(kit, step):
    """The exact sum of who masked, or an end with nothing unmasked, from the same session."""
    cohort = kit.Cohort(CLIENTS, corrupt=0.01, dropout=0.02)
    assert cohort.plan.topology.ring
    heard = cohort.until(step)
    other = copy.deepcopy(cohort)
    gone = gone_at(cohort, step, 0)
    dropouts = dict.fromkeys(gone, step)
    assert len(gone) >= 2
    with pytest.raises(SecureAggregationError, match=r"needed|nothing was unmasked"):
        finish(other, step, heard, dict.fromkeys(gone_at(other, step, -1), step))
    with pytest.raises(SecureAggregationError, match="over"):
        other.server.sum()
    masked = (
        cohort.names if step > ProtocolStep.MASK else [n for n in cohort.names if n not in gone]
    )
    cohort.require_exact(finish(cohort, step, heard, dropouts), masked)


def finish(cohort: Any, step: ProtocolStep, heard: Any, dropouts: Any) -> Any:
    """Run a session from a step on to its sum."""
    for now in list(ProtocolStep)[step:]:
        cohort.answer(now, heard, dropouts)
        if now is not ProtocolStep.UNMASK:
            heard = cohort.server.close_round()
    return cohort.server.sum()
