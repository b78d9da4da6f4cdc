"""Clients that do not follow the protocol: they are named, and the honest ones' sum is right."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meadow.privacy.secagg.protocol import SecureAggregationError
from meadow.privacy.secagg.protocol.recovery import recover
from meadow.privacy.secagg.protocol.shamir import split
from meadow.privacy.secagg.protocol.steps import ProtocolStep

LIAR = "site-003"


@pytest.fixture
def cohort(kit):
    """Sixteen clients; 11 shares give a secret."""
    return kit.Cohort(16, corrupt=0.33, dropout=0.3)


@pytest.mark.parametrize("step", ProtocolStep)
def test_a_damaged_message_is_refused_and_may_be_sent_again(kit, cohort, step):
    """Too short, too long, of another kind: nothing has changed for the server."""
    heard = cohort.until(step)
    good = cohort.say(step, LIAR, heard[LIAR])
    for bad in (b"", good[:-1], good + b"x", good[:4] + b"\x07\x08" + good[6:], good[:30]):
        with pytest.raises(SecureAggregationError, match="message from site-003") as caught:
            cohort.server.collect(LIAR, bad)
        assert caught.value.suspect == LIAR
    assert LIAR in cohort.server.missing
    cohort.server.collect(LIAR, good)
    assert LIAR not in cohort.server.missing


@pytest.mark.parametrize("step", [ProtocolStep.MASK, ProtocolStep.CONFIRM])
def test_a_wrong_signature_is_refused(kit, cohort, step):
    """By the server already, so that one client cannot end the session for all."""
    heard = cohort.until(step)
    message = kit.flip(cohort.say(step, LIAR, heard[LIAR]), 0)
    with pytest.raises(SecureAggregationError, match="signature of client 'site-003'"):
        cohort.server.collect(LIAR, message)


def test_somebody_elses_message_is_refused(cohort):
    """A message is its sender's alone."""
    heard = cohort.until(ProtocolStep.MASK)
    with pytest.raises(SecureAggregationError, match="signature of client 'site-003'"):
        cohort.server.collect(LIAR, cohort.say(ProtocolStep.MASK, "site-004", heard["site-004"]))


def test_sealed_nonsense_is_refused_by_its_receiver(kit, cohort):
    """The receivers name the sender, so that the next session can do without it."""
    heard = cohort.until(ProtocolStep.SHARE)
    message = cohort.say(ProtocolStep.SHARE, LIAR, heard[LIAR])
    cohort.server.collect(LIAR, kit.edit(message, 0, bytes(88 * 15)))
    cohort.answer(ProtocolStep.SHARE, {name: word for name, word in heard.items() if name != LIAR})
    heard = cohort.server.close_round()
    with pytest.raises(SecureAggregationError) as caught:
        cohort.say(ProtocolStep.MASK, "site-000", heard["site-000"])
    assert caught.value.suspect == LIAR


@pytest.mark.parametrize("gone", [{}, {"site-009": ProtocolStep.MASK}])
def test_a_wrong_share_is_found(kit, cohort, gone):
    """With a share to spare, whose it was is found, and the sum is exact."""
    heard = cohort.until(ProtocolStep.UNMASK, gone)
    for name, message in heard.items():
        answer = cohort.say(ProtocolStep.UNMASK, name, message)
        if name == LIAR:
            answer = kit.edit(answer, 0, bytes(16 * 36))
        cohort.server.collect(name, answer)
    result = cohort.server.sum()
    assert result.suspects == (LIAR,)
    cohort.require_exact(result, [name for name in cohort.names if name not in gone])


def test_wrong_shares_without_any_to_spare(kit, cohort):
    """Eleven answers, one of them wrong: an end, with nothing unmasked."""
    heard = cohort.until(ProtocolStep.UNMASK)
    for name in cohort.names[:11]:
        answer = cohort.say(ProtocolStep.UNMASK, name, heard[name])
        cohort.server.collect(name, kit.flip(answer, 5) if name == LIAR else answer)
    with pytest.raises(SecureAggregationError, match="nothing was unmasked"):
        cohort.server.sum()
    with pytest.raises(SecureAggregationError, match="session is over"):
        cohort.server.sum()


def test_a_dealer_of_wrong_shares(kit, cohort):
    """Its secret does not fit its commitment, whoever's shares are left out: it is named."""
    sender = cohort.clients[LIAR]
    heard = cohort.until(ProtocolStep.SHARE)
    sender._secrets._keys.seed = bytes(32)  # not what it committed to
    cohort.answer(ProtocolStep.SHARE, heard)
    heard = cohort.server.close_round()
    for step in (ProtocolStep.MASK, ProtocolStep.CONFIRM):
        cohort.answer(step, heard)
        heard = cohort.server.close_round()
    cohort.answer(ProtocolStep.UNMASK, heard)
    with pytest.raises(SecureAggregationError, match="do not match its commitment") as caught:
        cohort.server.sum()
    assert caught.value.suspect == LIAR


@pytest.mark.parametrize("wrong", range(5))
def test_the_liar_among_holders_is_named(kit, wrong):
    """Whichever it is; one beyond the first three is not even looked at."""
    secret = b"s" * 32
    shares = split(secret, points=range(1, 6), threshold=3, entropy=kit.replayed(0))
    held = dict(enumerate(shares))
    held[wrong] = bytes(36)
    found = recover(held, threshold=3, check=lambda found: found == secret, owner="a")
    assert found == (secret, wrong if wrong < 3 else None)


def test_a_client_with_bad_numbers_sends_nothing(cohort):
    """Not a number is refused at home, and ends this client's session."""
    heard = cohort.until(ProtocolStep.MASK)
    cohort.vectors[LIAR][2] = float("nan")
    with pytest.raises(Exception, match="not all finite"):
        cohort.say(ProtocolStep.MASK, LIAR, heard[LIAR])
    with pytest.raises(SecureAggregationError, match="session is over"):
        cohort.say(ProtocolStep.MASK, LIAR, heard[LIAR])


@settings(max_examples=60)
@given(st.sampled_from([ProtocolStep.MASK, ProtocolStep.CONFIRM, ProtocolStep.UNMASK]), st.data())
def test_whatever_a_client_hears_is_refused_if_it_was_changed(kit, step, data):
    """Random bytes, and real messages with a random change, never raise anything untyped."""
    cohort = kit.Cohort(5)
    heard = cohort.until(step)["site-000"]
    with pytest.raises(SecureAggregationError):
        cohort.say(step, "site-000", forge(heard, data))


@settings(max_examples=60)
@given(st.sampled_from(ProtocolStep), st.data())
def test_whatever_the_server_hears_is_taken_or_refused(kit, step, data):
    """A change that nobody can see changes the sum at most, and never raises anything untyped."""
    cohort = kit.Cohort(5)
    heard = cohort.until(step)
    forged = forge(cohort.say(step, "site-000", heard["site-000"]), data)
    rest = {name: message for name, message in heard.items() if name != "site-000"}
    try:
        cohort.server.collect("site-000", forged)
    except SecureAggregationError as error:
        assert error.suspect == "site-000"
    cohort.answer(step, rest)
    if step is ProtocolStep.UNMASK:
        cohort.require_exact(cohort.server.sum(), cohort.names)
    else:
        assert set(cohort.server.close_round()) >= set(rest)


def forge(message: bytes, data) -> bytes:
    """Return a message with one byte changed, or another body."""
    if data.draw(st.booleans()):
        return message[:21] + data.draw(st.binary(max_size=600))
    at = data.draw(st.integers(0, len(message) - 1))
    return message[:at] + bytes([message[at] ^ data.draw(st.integers(1, 255))]) + message[at + 1 :]
