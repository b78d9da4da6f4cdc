"""[privacy.differential_privacy] noise: what does not go with who adds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..sections.model import Config

__all__ = ["noise_rules"]

SECTION = "privacy.differential_privacy"


def noise_rules(config: Config) -> list[tuple[bool, tuple[str, ...], str]]:
    """Return what does not go with who adds the noise: whether, which keys, and why."""
    chosen, secure = config.privacy.differential_privacy, config.privacy.secure_aggregation.enabled
    noise, key, hidden = chosen.noise, f"{SECTION}.noise", "privacy.secure_aggregation.enabled"
    within_sums = noise.startswith("distributed")
    return [
        (
            within_sums and not secure,
            (key, hidden),
            (
                f'= "{noise}" gives each client a share of the noise that is too small alone: it '
                f"needs {hidden} = true"
            ),
        ),
        (
            secure and not within_sums,
            (key, hidden),
            (
                f'= "{noise}" does not go with {hidden} = true, which does not trust the server and '
                'bounds single values; set noise = "distributed"'
            ),
        ),
        (
            noise != "server" and chosen.sampling != "fixed",
            (f"{SECTION}.sampling", key),
            (
                f'= "{chosen.sampling}" amplifies only against those who do not know who takes part, '
                f'and noise = "{noise}" is against a server that does; set sampling = "fixed"'
            ),
        ),
        (
            noise != "server" and chosen.clipping == "adaptive",
            (f"{SECTION}.clipping", key),
            (
                f'= "adaptive" is for noise that the server adds, this is "{noise}"; set clipping = '
                '"fixed"'
            ),
        ),
        (
            noise != "server" and chosen.correlation != "none",
            (f"{SECTION}.correlation", key),
            (
                f'= "{chosen.correlation}" is for noise that the server adds, this is "{noise}"; '
                'set correlation = "none"'
            ),
        ),
        (
            noise == "local_laplace" and chosen.clipping != "fixed",
            (f"{SECTION}.clipping", key),
            (
                f'= "{chosen.clipping}" bounds an L2 norm, and noise = "local_laplace" needs an L1 '
                'norm of the whole change; set clipping = "fixed"'
            ),
        ),
    ]
