"""What a private run needs, each rule once: the configuration, the command line and plans ask here.

Each function returns the fault and its remedy, as the rest of a sentence that begins with the name
of its first argument; None if there is no fault.
"""

from __future__ import annotations

__all__ = [
    "budget_rule",
    "clipping_rule",
    "cohort_rule",
    "correlation_rule",
    "delta_rule",
    "reach_rule",
    "sampling_rule",
    "turns_rule",
]

BUDGET_OR_NOISE = (
    "or noise_multiplier must be given, and not both: each follows from the other; "
    '"meadow privacy plan" shows how'
)


def budget_rule(epsilon: float | None, noise_multiplier: float | None) -> str | None:
    """Exactly one of budget and noise must be given."""
    if epsilon is None and noise_multiplier is None:
        return BUDGET_OR_NOISE
    if epsilon is not None and noise_multiplier is not None:
        return (
            f"{BUDGET_OR_NOISE}; got epsilon = {epsilon} and noise_multiplier = {noise_multiplier}"
        )
    return None


def delta_rule(delta: float, population: int) -> str | None:
    """With probability delta, a client's data could be revealed: delta must be < 1 / population."""
    if delta * population < 1:
        return None
    return (
        f"= {delta:g} must be less than 1 / {population}, the population: else a client's data could "
        "be revealed; lower it"
    )


def cohort_rule(cohort: float, population: int) -> str | None:
    """A cohort cannot be larger than the population."""
    if cohort <= population:
        return None
    return f"must be <= population, got {cohort:g} of {population}; raise population"


def turns_rule(sampling: str, *, by_turns: bool) -> str | None:
    """Poisson sampling cannot enforce min-separation participation."""
    if sampling != "poisson" or not by_turns:
        return None
    return (
        '= "poisson" samples each client independently in every round; with min_separation, '
        'participations_max or correlated noise it must be "fixed"'
    )


def reach_rule(min_separation: int, reach: int, correlation: str) -> str | None:
    """A client may take part only once within the rounds over which noise is correlated."""
    if min_separation >= reach:
        return None
    return (
        f"must be >= {reach}, the rounds over which the {correlation} noise is correlated, got "
        f"{min_separation}: a client may take part only once within them; lower bands or raise "
        "min_separation"
    )


def sampling_rule(sampling: str, noise: str) -> str | None:
    """Poisson sampling amplifies nothing against a server that knows who takes part."""
    if noise == "server" or sampling == "fixed":
        return None
    return (
        f'= "{sampling}" amplifies only against those who do not know who takes part, and noise = '
        f'"{noise}" protects against a server that knows; set sampling = "fixed"'
    )


def clipping_rule(clipping: str, noise: str, correlation: str) -> str | None:
    """An adaptive clip norm needs noise that the server scales; Laplace noise needs an L1 norm."""
    if clipping == "adaptive" and noise != "server":
        return (
            f'= "adaptive" is for noise that the server adds, this is "{noise}"; set clipping = '
            '"fixed"'
        )
    if clipping == "adaptive" and correlation != "none":
        return (
            '= "adaptive" changes the scale of the noise, and correlated noise subtracts noise of '
            'earlier rounds; choose "fixed" or "per_layer"'
        )
    if clipping != "fixed" and noise == "local_laplace":
        return (
            f'= "{clipping}" bounds an L2 norm, and noise = "local_laplace" needs an L1 norm of the '
            'whole delta; set clipping = "fixed"'
        )
    return None


def correlation_rule(correlation: str, noise: str) -> str | None:
    """Only the server knows the noise of earlier rounds, and can subtract it."""
    if correlation == "none" or noise == "server":
        return None
    return (
        f'= "{correlation}" is for noise that the server adds, this is "{noise}"; set correlation = '
        '"none"'
    )
