"""What a session is bound to, and the rosters and keys that are refused."""

from __future__ import annotations

import pytest

from meadow.errors import ConfigError
from meadow.privacy.secagg.protocol import ClientKeys, Roster, SecureAggregationError
from meadow.privacy.secagg.protocol.binding import context_of
from meadow.privacy.secagg.protocol.keys import (
    AgreementKeyPair,
    commit,
    derive_key,
    seal,
    sign,
    unseal,
    verify,
)

FRESH = (bytes(range(160)), bytes(range(1, 161)))


def test_everything_is_in_the_context(kit):
    """Any field of the binding, any number of the plan, any name or key of the roster."""
    cohort = kit.Cohort(5)
    changed = [
        {"session": b"t" * 16},
        {"round": 4},
        {"model": b"n" * 32},
        {"configuration": b"d" * 32},
        {"beacon": b"c" * 32},
    ]
    contexts = {cohort.context}
    contexts |= {context_of(cohort.plan, cohort.roster, cohort.bind(**one)) for one in changed}
    for other in ({"length": 8}, {"value_bound": 2.0}, {"corrupt": 0.0}):
        contexts.add(kit.Cohort(5, **other).context)
    names = [*cohort.names[:4], "site-999"]
    contexts.add(context_of(cohort.plan, cohort.roster_of(names), cohort.binding))
    fresh = cohort.introduction("site-002", ClientKeys(kit.replayed(1)))
    roster = cohort.roster_of(cohort.names, site_002=fresh)
    contexts.add(context_of(cohort.plan, roster, cohort.binding))
    assert len(contexts) == 11


def test_a_whole_clip_is_a_real_one(kit):
    """A configuration may write 1 on one side and 1.0 on the other."""
    assert kit.Cohort(5, value_bound=1).context == kit.Cohort(5, value_bound=1.0).context


@pytest.mark.parametrize(
    ("names", "keys", "advertised", "text"),
    [
        (("b", "a"), (b"1" * 32, b"2" * 32), FRESH, "must be sorted"),
        (("a", "a"), (b"1" * 32, b"2" * 32), FRESH, "different"),
        (("a", "b"), (b"1" * 32,), FRESH, "one key each"),
        (("a", "b"), (b"1" * 32, b"2" * 32), FRESH[:1], "one key each"),
        (("a", "b"), (b"1" * 32, b"2" * 31), FRESH, "32 bytes"),
        (("a", "b"), (b"1" * 32, b"2" * 32), (FRESH[0], b"short"), "160 bytes"),
        (("a", "b"), (b"1" * 32, b"1" * 32), FRESH, "a key is in the roster twice"),
        (("a", "b"), (b"1" * 32, b"2" * 32), FRESH[:1] * 2, "of the session is in the roster"),
        (("a", "b"), (b"1" * 32, b"2" * 32), (FRESH[0], b"k" * 160), "of the session is in"),
    ],
)
def test_rosters_that_are_refused(names, keys, advertised, text):
    """One client under two names could count twice; a key is for one use."""
    with pytest.raises(ConfigError, match=text):
        Roster(names=names, keys=keys, advertised=advertised)


def test_a_roster_of_another_size(kit):
    """The plan's thresholds are for the planned number."""
    cohort = kit.Cohort(5)
    with pytest.raises(ConfigError, match="for 5 clients, the roster has 4"):
        context_of(cohort.plan, cohort.roster_of(cohort.names[:4]), cohort.binding)


@pytest.mark.parametrize(
    "field", [{"session": b"short"}, {"round": -1}, {"model": b""}, {"beacon": b"x" * 33}]
)
def test_bindings_that_are_refused(kit, field):
    """The text names the field."""
    with pytest.raises(ConfigError, match=next(iter(field))):
        kit.Cohort.bind(**field)


def test_two_sides_agree_on_a_key():
    """And the purpose, the context and the order of the clients give other ones."""
    one, other = AgreementKeyPair.of(b"1" * 32), AgreementKeyPair.of(b"2" * 32)
    agreed = one.agree(other.public, name="b")
    assert agreed == other.agree(one.public, name="a")
    keys = {
        derive_key(agreed, context, purpose, *clients)
        for context in (b"a" * 32, b"b" * 32)
        for purpose in (b"shares", b"pair mask")
        for clients in ((1, 2), (2, 1), (1,))
    }
    assert len(keys) == 12


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little")])
def test_points_of_low_order_are_refused(point):
    """Nothing agreed with them would be secret (RFC 7748, section 6.1)."""
    with pytest.raises(SecureAggregationError, match="of client 'b' is a point of low order"):
        AgreementKeyPair.of(b"1" * 32).agree(point, name="b")


def test_what_is_sealed_opens_with_its_key_alone():
    """Another key or a changed bit is refused."""
    sealed = seal(b"k" * 32, b"text")
    assert unseal(b"k" * 32, sealed, name="a") == b"text"
    for key, text in ((b"l" * 32, sealed), (b"k" * 32, sealed[:-1] + b"?")):
        with pytest.raises(SecureAggregationError):
            unseal(key, text, name="a")


def test_a_signature_is_for_one_purpose(kit):
    """And for one context, one cut into parts."""
    key = kit.signing_key("a")
    public, signature = key.public_key().public_bytes_raw(), sign(key, b"c" * 32, b"keys", b"ab")
    verify(public, signature, b"c" * 32, b"keys", b"ab", name="a")
    for context, purpose, parts in (
        (b"d" * 32, b"keys", (b"ab",)),
        (b"c" * 32, b"survivors", (b"ab",)),
        (b"c" * 32, b"keys", (b"a", b"b")),
    ):
        with pytest.raises(SecureAggregationError, match="not valid in this session"):
            verify(public, signature, context, purpose, *parts, name="a")


def test_commitments_differ():
    """By seed and client: who copies another's cannot open it."""
    seeds = {commit(seed, key) for seed in (b"1" * 32, b"2" * 32) for key in (b"a" * 32, b"b" * 32)}
    assert len(seeds) == 4
