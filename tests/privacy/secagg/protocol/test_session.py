"""Whole sessions: the exact sum, whoever drops out and when, or an end with nothing unmasked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.privacy.secagg.protocol import SecureAggregationError
from meadow.privacy.secagg.protocol.steps import ProtocolStep

COMPLETE = {"corrupt": 0.33, "dropout": 0.2}
RING = {"corrupt": 0.05, "dropout": 0.05, "complete_max": 10}


def in_the_sum(cohort, dropouts) -> list[str]:
    """Return who sent a masked vector."""
    return [
        name
        for name in cohort.names
        if dropouts.get(name, ProtocolStep.CONFIRM) > ProtocolStep.MASK
    ]


@pytest.mark.parametrize("step", ProtocolStep)
@pytest.mark.parametrize("clients", [5, 16, 64])
def test_as_many_dropouts_as_planned(kit, clients, step):
    """At any step, what is left gives the exact sum; late dropouts are in it."""
    cohort = kit.Cohort(clients, **COMPLETE)
    gone = cohort.names[1::2][: cohort.plan.topology.dropout]
    dropouts = dict.fromkeys(gone, step)
    assert gone
    cohort.require_exact(cohort.run(dropouts), in_the_sum(cohort, dropouts))


@pytest.mark.parametrize("step", ProtocolStep)
@pytest.mark.parametrize("clients", [5, 16, 64])
def test_one_dropout_more_ends_the_session(kit, clients, step):
    """At any step; the error says how many are there and how many are needed."""
    cohort = kit.Cohort(clients, **COMPLETE)
    gone = cohort.names[: cohort.plan.topology.dropout + 1]
    with pytest.raises(SecureAggregationError, match=r"^only \d+ .* needed"):
        cohort.run(dict.fromkeys(gone, step))
    require_nothing_unmasked(cohort)


def require_nothing_unmasked(cohort) -> None:
    """Check that the server is at an end, and that what it holds is not the sum."""
    for ask in (cohort.server.sum, cohort.server.close_round):
        with pytest.raises(SecureAggregationError, match="over"):
            ask()
    held, _ = cohort.plan.encoding.decode(cohort.server._total)
    for names in (cohort.names, cohort.names[cohort.plan.topology.dropout + 1 :]):
        expected, _ = cohort.plain_sum(names)
        assert not np.isclose(held, expected).any()


@pytest.mark.parametrize("step", [ProtocolStep.SHARE, ProtocolStep.MASK])
def test_dropouts_in_a_ring(kit, step):
    """As many as planned leave the exact sum, one more ends the session."""
    cohort = kit.Cohort(64, **RING)
    assert cohort.plan.topology.ring
    gone = cohort.names[: cohort.plan.topology.dropout + 1]
    dropouts = dict.fromkeys(gone[1:], step)
    cohort.require_exact(cohort.run(dropouts), in_the_sum(cohort, dropouts))
    again = kit.Cohort(64, **RING)
    with pytest.raises(SecureAggregationError, match="only 60 of 64"):
        again.run(dict.fromkeys(gone, step))


@pytest.mark.parametrize(("spare", "enough"), [(0, True), (-1, False)])
def test_late_dropouts_around_one_client_of_a_ring(kit, spare, enough):
    """Its neighbours do not answer in the last step: t of them suffice, t - 1 do not."""
    cohort = kit.Cohort(64, **RING)
    topology = cohort.plan.topology
    neighbours = [cohort.names[client] for client in cohort.graph.neighbours(7)]
    gone = neighbours[: topology.neighbours - topology.threshold - spare]
    dropouts = dict.fromkeys(gone, ProtocolStep.UNMASK)
    if enough:
        cohort.require_exact(cohort.run(dropouts), cohort.names)
    else:
        with pytest.raises(SecureAggregationError, match="nothing was unmasked"):
            cohort.run(dropouts)
        require_nothing_unmasked(cohort)


def test_confirmations_in_a_ring(kit):
    """The quorum is of the whole cohort: one fewer than 34 of 64 end the session."""
    cohort = kit.Cohort(64, **RING)
    gone = cohort.names[: 64 - cohort.plan.topology.quorum + 1]
    with pytest.raises(SecureAggregationError, match="only 33 of 64 clients confirmed"):
        cohort.run(dict.fromkeys(gone, ProtocolStep.CONFIRM))


def test_two_hundred_clients_in_a_ring(kit):
    """With dropouts at every step."""
    cohort = kit.Cohort(200, corrupt=0.05, dropout=0.05)
    steps = [
        ProtocolStep.SHARE,
        ProtocolStep.MASK,
        ProtocolStep.MASK,
        ProtocolStep.CONFIRM,
        ProtocolStep.UNMASK,
    ]
    dropouts = {cohort.names[7 * place]: step for place, step in enumerate(steps)}
    cohort.require_exact(cohort.run(dropouts), in_the_sum(cohort, dropouts))


@settings(max_examples=30)
@given(st.integers(3, 12), st.booleans(), st.integers(0, 2**16), st.data())
def test_any_dropouts_give_the_exact_sum_or_none(kit, clients, ring, seed, data):
    """Random graphs, vectors, widths and dropouts: the sum of who masked, or an error."""
    bits = data.draw(st.sampled_from([21, 24, 32]))
    cohort = kit.Cohort(
        clients,
        seed=seed,
        corrupt=0.1,
        dropout=0.1,
        bits=bits,
        value_bits=14,
        value_bound=2.0**13 - 1,
        length=data.draw(st.integers(1, 70)),
        complete_max=3 if ring else 100,
    )
    dropouts = data.draw(
        st.dictionaries(
            st.sampled_from(cohort.names), st.sampled_from(ProtocolStep), max_size=clients
        )
    )
    topology = cohort.plan.topology
    try:
        result = cohort.run(dropouts)
    except SecureAggregationError:
        assert len(dropouts) > min(topology.dropout, topology.neighbours - topology.threshold)
    else:
        cohort.require_exact(result, in_the_sum(cohort, dropouts))


def test_a_masked_vector_looks_like_noise(kit):
    """A vector of zeros under masks: each byte's value is about as frequent as any other."""
    cohort = kit.Cohort(5, length=20_000)
    cohort.vectors = {name: np.zeros(20_000) for name in cohort.names}
    heard = cohort.until(ProtocolStep.MASK)
    masked = cohort.say(ProtocolStep.MASK, "site-002", heard["site-002"])[-80_004:]
    counts = np.bincount(np.frombuffer(masked, np.uint8), minlength=256)
    expected = len(masked) / 256
    assert ((counts - expected) ** 2 / expected).sum() < 345  # chi-square, 255 degrees, p = 1e-4


def test_the_same_vector_never_looks_the_same(kit):
    """Fresh keys every session: the two masked vectors have nothing in common."""
    first, second = kit.Cohort(5, length=1000), kit.Cohort(5, length=1000, seed=1)
    second.vectors, second.weights = first.vectors, first.weights
    texts = [
        np.frombuffer(
            cohort.say(ProtocolStep.MASK, "site-000", cohort.until(ProtocolStep.MASK)["site-000"])[
                85:
            ],
            "<u4",
        )
        for cohort in (first, second)
    ]
    assert (texts[0] == texts[1]).sum() <= 1


def test_keys_are_for_one_session(kit):
    """What one session reveals of a client's keys would unmask it in another."""
    cohort = kit.Cohort(5)
    keys = cohort.keys_of("site-002")
    cohort.client("site-002", keys=keys)
    with pytest.raises(SecureAggregationError, match="were used in a session"):
        cohort.client("site-002", keys=keys)


def test_messages_have_the_planned_sizes(kit):
    """Four bytes a parameter at 32 bits, and packed at fewer."""
    for bits, value_bits, expected in ((32, 16, 4 * 101), (21, 16, -(-101 * 21 // 8))):
        cohort = kit.Cohort(5, length=100, bits=bits, value_bits=value_bits)
        heard = cohort.until(ProtocolStep.MASK)
        message = cohort.say(ProtocolStep.MASK, "site-000", heard["site-000"])
        assert len(message) == kit.HEADER_BYTES + 64 + expected


def test_late_and_repeated_messages_are_refused(kit):
    """The server takes one message a round, of clients that are still there, and goes on."""
    cohort = kit.Cohort(5, **COMPLETE)
    words = {name: cohort.say(ProtocolStep.SHARE, name, b"") for name in cohort.names}
    for name in cohort.names[:4]:
        cohort.server.collect(name, words[name])
    assert cohort.server.missing == ["site-004"]
    with pytest.raises(SecureAggregationError, match="has already sent its message"):
        cohort.server.collect("site-000", words["site-000"])
    heard = cohort.server.close_round()
    assert sorted(heard) == cohort.names[:4]
    with pytest.raises(SecureAggregationError, match="dropped out earlier") as caught:
        cohort.server.collect("site-004", words["site-004"])
    assert caught.value.suspect == "site-004"
    with pytest.raises(SecureAggregationError, match="not in the roster"):
        cohort.server.collect("stranger", words["site-004"])
    with pytest.raises(SecureAggregationError, match="only after the last round"):
        cohort.server.sum()
    cohort.answer(ProtocolStep.MASK, heard)
    for step in (ProtocolStep.CONFIRM, ProtocolStep.UNMASK):
        cohort.answer(step, cohort.server.close_round())
    with pytest.raises(SecureAggregationError, match="the last round is closed"):
        cohort.server.close_round()
    cohort.require_exact(cohort.server.sum(), cohort.names[:4])
