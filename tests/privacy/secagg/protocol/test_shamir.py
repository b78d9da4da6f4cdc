"""Secret sharing: a published example, whole-number arithmetic, and what too few shares say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meadow.privacy.secagg.protocol import SecureAggregationError
from meadow.privacy.secagg.protocol.shamir import PRIME, SHARE_BYTES, combine, evaluate, split

secrets = st.binary(min_size=32, max_size=32)


def limbs_of(secret: bytes) -> list[int]:
    """Cut a secret into 15-bit limbs, with whole numbers of Python."""
    number = int.from_bytes(secret, "little")
    return [(number >> (15 * place)) & 0x7FFF for place in range(18)]


def interpolate(points: dict[int, int]) -> int:
    """Return the polynomial's value at zero, by the textbook's formula."""
    total = 0
    for here, value in points.items():
        factor = 1
        for other in points:
            if other != here:
                factor = factor * other * pow(other - here, -1, PRIME) % PRIME
        total += value * factor
    return total % PRIME


def test_the_published_example():
    """Wikipedia, "Shamir's secret sharing": 1234 + 166 x + 94 x^2 modulo 1613, at 1 to 6."""
    values = evaluate(np.array([[1234], [166], [94]]), (1, 2, 3, 4, 5, 6), prime=1613)
    assert values[:, 0].tolist() == [1494, 329, 965, 176, 1188, 775]


@given(secrets, st.integers(0, 2**32), st.data())
def test_any_threshold_shares_give_the_secret(kit, secret, seed, data):
    """Whoever they are; and the textbook's interpolation agrees, limb by limb."""
    count = data.draw(st.integers(2, 12))
    threshold = data.draw(st.integers(2, count))
    points = data.draw(
        st.lists(st.integers(1, PRIME - 1), min_size=count, max_size=count, unique=True)
    )
    shares = split(secret, points=points, threshold=threshold, entropy=kit.replayed(seed))
    chosen = data.draw(st.permutations(range(count)))[:threshold]
    held = {points[place]: shares[place] for place in chosen}
    assert combine(held) == secret
    rows = {point: np.frombuffer(share, "<u2").tolist() for point, share in held.items()}
    for place, limb in enumerate(limbs_of(secret)):
        assert interpolate({point: row[place] for point, row in rows.items()}) == limb


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_extreme_secrets_and_sizes(kit, secret):
    """All bits zero or one, with 1,000 holders and a threshold of 667: sums stay exact."""
    points = range(1, 1001)
    shares = split(secret, points=points, threshold=667, entropy=kit.replayed(1))
    assert {len(share) for share in shares} == {SHARE_BYTES}
    assert combine({point: shares[point - 1] for point in range(334, 1001)}) == secret


def test_too_few_shares_fit_every_secret(kit):
    """With two of three shares, a third one exists for whatever secret one likes."""
    shares = split(b"s" * 32, points=[1, 2, 3], threshold=3, entropy=kit.replayed(2))
    rows = [np.frombuffer(share, "<u2").astype(int).tolist() for share in shares[:2]]
    wanted = bytes(range(32))
    third = [
        # the parabola through (0, wanted), (1, a), (2, b), at 3
        (limb - 3 * a + 3 * b) % PRIME
        for limb, a, b in zip(limbs_of(wanted), *rows, strict=True)
    ]
    forged = np.array(third, "<u2").tobytes()
    assert combine({1: shares[0], 2: shares[1], 3: forged}) == wanted


def test_a_single_share_is_uniform(kit):
    """Over many dealings of one secret, its limbs are spread evenly over the field."""
    entropy = kit.replayed(3)
    rows = [
        np.frombuffer(split(bytes(32), points=[1, 2], threshold=2, entropy=entropy)[0], "<u2")
        for _ in range(2000)
    ]
    counts, _ = np.histogram(np.concatenate(rows), bins=16, range=(0, PRIME))
    expected = 2000 * 18 / 16
    assert ((counts - expected) ** 2 / expected).sum() < 44.3  # chi-square, 15 degrees, p = 1e-4


def test_a_wrong_share_changes_the_secret(kit):
    """So that a check against the public key or the commitment finds it."""
    shares = split(b"s" * 32, points=[1, 2, 3], threshold=3, entropy=kit.replayed(4))
    for place in range(0, SHARE_BYTES, 2):
        wrong = bytearray(shares[1])
        wrong[place] ^= 1
        try:
            secret = combine({1: shares[0], 2: bytes(wrong), 3: shares[2]})
        except SecureAggregationError:
            continue
        assert secret != b"s" * 32


def test_shares_of_no_secret_are_refused():
    """Numbers beyond 15 bits a limb cannot come from 32 bytes."""
    share = np.full(18, PRIME - 1, "<u2").tobytes()
    with pytest.raises(SecureAggregationError, match="do not belong to one secret"):
        combine({1: share, 2: share})
