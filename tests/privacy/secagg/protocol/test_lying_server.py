"""A server that does not follow the protocol, against honest clients: everything is refused."""

from __future__ import annotations

import numpy as np
import pytest

from meadow.errors import ConfigError
from meadow.privacy.secagg.protocol import SecureAggregationError, ServerSession
from meadow.privacy.secagg.protocol.client_keys import ClientKeys
from meadow.privacy.secagg.protocol.keys import sign
from meadow.privacy.secagg.protocol.messages import Kind, members_bytes, write
from meadow.privacy.secagg.protocol.steps import ProtocolStep, Purpose

ME = "site-001"
SET = 2
"""Bytes of a set of 16 clients."""

ROUNDS = [ProtocolStep.MASK, ProtocolStep.CONFIRM]


def refuse(cohort, step: ProtocolStep, message: bytes, text: str) -> None:
    """Check that a client refuses, and that its session is over then."""
    with pytest.raises(SecureAggregationError, match=text):
        cohort.say(step, ME, message)
    for later in list(ProtocolStep)[step:]:
        with pytest.raises(SecureAggregationError, match="session is over"):
            cohort.say(later, ME, message)


@pytest.fixture
def cohort(kit):
    """Sixteen clients; 11 are needed, 5 may collude."""
    return kit.Cohort(16, corrupt=0.33, dropout=0.3)


@pytest.mark.parametrize("step", ROUNDS)
def test_oneself_listed_as_dropped(kit, cohort, step):
    """A client knows that it answered."""
    heard = cohort.until(step)[ME]
    forged = kit.with_set(heard, set(range(16)) - {1}, 16)
    refuse(cohort, step, forged, "does not list this client")


@pytest.mark.parametrize("step", ROUNDS)
def test_a_set_below_the_threshold(kit, cohort, step):
    """Ten of sixteen: the sum would be of too few."""
    heard = cohort.until(step)[ME]
    refuse(cohort, step, kit.with_set(heard, range(10), 16), "only 10 of 16")


@pytest.mark.parametrize("step", [*ROUNDS, ProtocolStep.UNMASK])
def test_an_unknown_client(kit, step):
    """A bit beyond the roster of thirteen."""
    cohort = kit.Cohort(13)
    heard = cohort.until(step)[ME]
    refuse(cohort, step, kit.flip(heard, 1, bit=6), "not among the 13 of the roster")


def test_a_client_both_dropped_and_alive(kit, cohort):
    """Who dropped out stays out; within one message, a set cannot say both."""
    heard = cohort.until(ProtocolStep.CONFIRM, {"site-009": ProtocolStep.SHARE})[ME]
    everybody = kit.with_set(heard, range(16), 16)
    refuse(cohort, ProtocolStep.CONFIRM, everybody, "'site-009' .* dropped out before")


def test_a_signer_who_is_not_in_the_sum(kit, cohort):
    """Confirmations count of survivors only."""
    heard = cohort.until(ProtocolStep.UNMASK, {"site-009": ProtocolStep.MASK})[ME]
    refuse(
        cohort, ProtocolStep.UNMASK, kit.with_set(heard, range(11), 16), "'site-009' .* dropped out"
    )


@pytest.mark.parametrize("step", [*ROUNDS, ProtocolStep.UNMASK])
@pytest.mark.parametrize("change", [b"", b"more"])
def test_a_record_too_many_or_too_few(cohort, step, change):
    """A client listed twice has no encoding; as a record more, it is refused."""
    heard = cohort.until(step)[ME]
    message = heard + change if change else heard[:-1]
    refuse(cohort, step, message, "bytes too many|bytes too early")


def told(cohort, **other):
    """Return the session of a client that is shown other keys of some clients."""
    return cohort.client(ME, roster=cohort.roster_of(cohort.names, **other))


def test_swapped_keys(cohort):
    """Two clients' keys of the session in each other's place."""
    (one, its), (other, others) = map(cohort.introduction, ("site-003", "site-004"))
    cohort.clients[ME] = told(cohort, site_003=(one, others), site_004=(other, its))
    refuse(cohort, ProtocolStep.SHARE, b"", "signature of client 'site-003' over its keys")


@pytest.mark.parametrize("byte", [0, 40, 70, 100])
def test_changed_keys(cohort, byte):
    """The sealing key, the masking key, the commitment or the signature."""
    key, advertised = cohort.introduction("site-006")
    flipped = advertised[byte] ^ 1
    changed = advertised[:byte] + bytes([flipped]) + advertised[byte + 1 :]
    cohort.clients[ME] = told(cohort, site_006=(key, changed))
    refuse(cohort, ProtocolStep.SHARE, b"", "signature of client 'site-006'")


def test_ones_own_keys_changed(kit, cohort):
    """By a replay of what this client advertised for another session."""
    earlier = cohort.introduction(ME, ClientKeys(kit.replayed(99)))
    with pytest.raises(SecureAggregationError, match=r"other keys of the session .* than its own"):
        told(cohort, site_001=earlier)


def test_anothers_keys_replayed(kit, cohort):
    """From an earlier session, honestly signed: it is another session than its owner's."""
    earlier = cohort.introduction("site-005", ClientKeys(kit.replayed(99)))
    cohort.clients[ME] = told(cohort, site_005=earlier)
    with pytest.raises(SecureAggregationError, match="another session, round, model"):
        cohort.until(ProtocolStep.MASK)
    other = kit.Cohort(16, corrupt=0.33, dropout=0.3)
    heard = write(
        Kind.DELIVERY,
        cohort.clients[ME]._context,
        other.until(ProtocolStep.MASK)[ME][kit.HEADER_BYTES :],
    )
    refuse(cohort, ProtocolStep.MASK, heard, "shares from client 'site-000' were changed")


def test_reused_keys(cohort):
    """Two clients with one key, by the same broken generator: honestly signed, yet refused."""
    twin = cohort.introduction("site-005", cohort.keys_of("site-006"))
    with pytest.raises(ConfigError, match="public key of the session is in the roster twice"):
        told(cohort, site_005=twin)


@pytest.mark.parametrize(
    "other",
    [
        {"model": b"other model".ljust(32)},
        {"round": 4},
        {"session": b"another session!"},
        {"configuration": b"other".ljust(32)},
        {"beacon": b"other".ljust(32)},
    ],
)
@pytest.mark.parametrize("forge_header", [False, True])
def test_different_models_for_different_clients(kit, cohort, other, forge_header):
    """Model inconsistency (Pasquini et al.): it is in every key, not only in the header."""
    cohort.clients[ME] = cohort.client(ME, binding=cohort.bind(**other))
    with pytest.raises(SecureAggregationError, match="another session, round, model"):
        cohort.until(ProtocolStep.MASK)
    honest = kit.Cohort(16, corrupt=0.33, dropout=0.3)
    heard = honest.until(ProtocolStep.MASK)[ME]
    if forge_header:
        heard = write(Kind.DELIVERY, cohort.clients[ME]._context, heard[kit.HEADER_BYTES :])
    text = "shares from client 'site-000' were changed" if forge_header else "another session"
    refuse(cohort, ProtocolStep.MASK, heard, text)


def test_a_replayed_session(kit, cohort):
    """What a server recorded of an earlier session of the same name is useless for a new one."""
    old = cohort.until(ProtocolStep.MASK)[ME]
    fresh = ClientKeys(kit.replayed(5))
    roster = cohort.roster_of(cohort.names, site_001=cohort.introduction(ME, fresh))
    cohort.clients[ME] = cohort.client(ME, keys=fresh, roster=roster)
    cohort.clients[ME].share()
    refuse(cohort, ProtocolStep.MASK, old, "another session")


def test_a_message_of_an_earlier_round(cohort):
    """Kinds are not interchangeable, and steps have an order."""
    heard = cohort.until(ProtocolStep.MASK)[ME]
    cohort.say(ProtocolStep.MASK, ME, heard)
    refuse(cohort, ProtocolStep.CONFIRM, heard, "is of kind 2; 4 is expected now")


@pytest.mark.parametrize("byte", [0, 71, 87])
def test_tampered_shares(kit, cohort, byte):
    """Any bit of what another client sealed; the sender is named."""
    heard = cohort.until(ProtocolStep.MASK)[ME]
    forged = kit.flip(heard, SET + 88 * 2 + byte)
    with pytest.raises(SecureAggregationError, match="shares from client 'site-003'") as caught:
        cohort.say(ProtocolStep.MASK, ME, forged)
    assert caught.value.suspect == "site-003"


def test_shares_passed_to_the_wrong_client(cohort):
    """What is sealed for one holder does not open for another."""
    heard = cohort.until(ProtocolStep.MASK)
    refuse(cohort, ProtocolStep.MASK, heard["site-002"], "made for somebody else")


def test_a_second_set_of_survivors(kit, cohort):
    """Asked twice, a client does not sign twice."""
    heard = cohort.until(ProtocolStep.CONFIRM)[ME]
    cohort.say(ProtocolStep.CONFIRM, ME, heard)
    other = kit.with_set(heard, range(15), 16)
    with pytest.raises(SecureAggregationError, match=r"session is at unmask"):
        cohort.say(ProtocolStep.CONFIRM, ME, other)
    refuse(cohort, ProtocolStep.UNMASK, heard, "session is over")


def test_two_sets_of_survivors_never_both_unmask(kit, cohort):
    """The server tells halves of the honest clients different survivors; the corrupt sign both."""
    heard = cohort.until(ProtocolStep.CONFIRM)
    sets = [set(range(16)), set(range(16)) - {15}]
    corrupt, halves = range(5), (range(5, 10), range(10, 15))
    signatures: list[dict[int, bytes]] = [{}, {}]
    everybody = np.ones(16, bool)
    for which, (members, honest) in enumerate(zip(sets, halves, strict=True)):
        survivors = np.isin(range(16), list(members))
        parts = [members_bytes(one) for one in (everybody, survivors)]
        for client in corrupt:
            key = kit.signing_key(cohort.names[client])
            signed = sign(key, cohort.context, Purpose.SURVIVORS, *parts)
            signatures[which][client] = signed
        for client in honest:
            message = kit.with_set(heard[cohort.names[client]], members, 16)
            message = message[: len(message) - 64 * (16 - len(members))]
            answer = cohort.clients[cohort.names[client]].confirm(message)
            signatures[which][client] = answer[kit.HEADER_BYTES :]
    for which, honest in enumerate(halves):
        signers = np.isin(range(16), list(signatures[which]))
        assert signers.sum() == cohort.plan.topology.quorum - 1
        stolen = np.isin(range(16), [*signatures[which], 14 - 5 * which])  # one of the other half
        other = signatures[1 - which]
        for told, known in ((signers, signatures[which]), (stolen, {**other, **signatures[which]})):
            records = [known[client] for client in np.flatnonzero(told).tolist()]
            message = write(Kind.CONFIRMATIONS, cohort.context, members_bytes(told), *records)
            client = cohort.names[honest[0 if told is signers else 1]]
            with pytest.raises(SecureAggregationError, match=r"only 10 of 16|is not valid"):
                cohort.clients[client].unmask(message)


def test_a_repeated_signature_is_not_two(kit, cohort):
    """One client's signature in another's place."""
    heard = cohort.until(ProtocolStep.UNMASK)[ME]
    first = heard[kit.HEADER_BYTES + SET :][:64]
    refuse(
        cohort,
        ProtocolStep.UNMASK,
        kit.edit(heard, SET + 64, first),
        "signature of client 'site-001'",
    )


def test_a_quorum_of_too_few(kit, cohort):
    """Ten valid signatures of eleven."""
    heard = cohort.until(ProtocolStep.UNMASK)[ME]
    forged = kit.with_set(heard, range(10), 16)[:-64]
    refuse(cohort, ProtocolStep.UNMASK, forged, "only 10 of 16 clients confirmed")


def test_a_client_masked_against_another_set(kit, cohort):
    """The server hides half of the cohort from one client, to strip off its few masks.

    The victim cannot tell. Its neighbours see what it signed, and do not unmask it.
    """
    heard = cohort.until(ProtocolStep.MASK)
    victim, seen = "site-000", range(11)
    message = heard[victim]
    few = kit.with_set(message, seen, 16)[: kit.HEADER_BYTES + SET + 88 * 10]
    signature = cohort.say(ProtocolStep.MASK, victim, few)[kit.HEADER_BYTES :][:64]
    for name in cohort.names[1:]:
        cohort.server.collect(name, cohort.say(ProtocolStep.MASK, name, heard[name]))
    told = cohort.server.close_round()[ME]
    told = kit.with_set(told, range(16), 16)
    told = told[: kit.HEADER_BYTES + SET] + signature + told[kit.HEADER_BYTES + SET :]
    refuse(cohort, ProtocolStep.CONFIRM, told, "'site-000' over its masked vector")


def test_no_answer_holds_both_shares_of_a_client(kit, cohort):
    """An answer has one share for each client: of 16, one dropped out, there are 16."""
    heard = cohort.until(ProtocolStep.UNMASK, {"site-009": ProtocolStep.MASK})
    answer = cohort.say(ProtocolStep.UNMASK, ME, heard[ME])
    assert len(answer) == kit.HEADER_BYTES + 16 * 36
    refuse(cohort, ProtocolStep.UNMASK, heard[ME], "session is over")


def test_a_roster_with_another_key(kit, cohort):
    """The server swaps a client's long-term key in one client's roster, or enrols a stranger."""
    with pytest.raises(ConfigError, match="another key for client 'site-001'"):
        cohort.client(ME, signing_key=kit.signing_key("somebody"))
    stranger = kit.signing_key("stranger")
    said = ClientKeys(kit.replayed(9)).advertise(stranger, name="site-004")
    cohort.clients[ME] = told(cohort, site_004=(stranger.public_key().public_bytes_raw(), said))
    with pytest.raises(SecureAggregationError, match="another session"):
        cohort.until(ProtocolStep.MASK)


def test_a_ring_of_the_servers_choice(kit):
    """A server with another beacon has other neighbours: its records do not fit."""
    ring = {"complete_max": 10, "corrupt": 0.05, "dropout": 0.05}
    cohort = kit.Cohort(64, **ring)
    cohort.server = ServerSession(
        plan=cohort.plan, roster=cohort.roster, binding=cohort.bind(beacon=b"x" * 32)
    )
    cohort.server._context = cohort.context  # it lies about what it is bound to
    heard = cohort.until(ProtocolStep.MASK)
    with pytest.raises(SecureAggregationError, match=r"shares from client .* were changed"):
        cohort.say(ProtocolStep.MASK, ME, heard[ME])
