"""What a private run needs, each rule once: the configuration, the command line and plans ask here.

Each function returns what is wrong and what would be right, as the rest of a sentence that begins
with the name of its first argument; None if nothing is.
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
    """Either the budget or the noise has to be known."""
    if epsilon is None and noise_multiplier is None:
        return BUDGET_OR_NOISE
    if epsilon is not None and noise_multiplier is not None:
        return (
            f"{BUDGET_OR_NOISE}; got epsilon = {epsilon} and noise_multiplier = {noise_multiplier}"
        )
    return None


def delta_rule(delta: float, population: int) -> str | None:
    """With a probability of delta a client's data could be shown outright."""
    if delta * population < 1:
        return None
    return (
        f"= {delta:g} must be less than 1 / {population}, the population: else a client's data could "
        "be shown outright; lower it"
    )


def cohort_rule(cohort: float, population: int) -> str | None:
    """A cohort is drawn from the population."""
    if cohort <= population:
        return None
    return f"must be <= population, got {cohort:g} of {population}; raise population"


def turns_rule(sampling: str, *, by_turns: bool) -> str | None:
    """Secret coins know nothing of turns, which separation and correlated noise presume."""
    if sampling != "poisson" or not by_turns:
        return None
    return (
        '= "poisson" has coins decide alone who takes part; with min_separation, participations_max '
        'or correlated noise it must be "fixed"'
    )


def reach_rule(min_separation: int, reach: int, correlation: str) -> str | None:
    """A client may take part once within the rounds that one round's noise reaches over."""
    if min_separation >= reach:
        return None
    return (
        f"must be >= {reach}, the rounds that the {correlation} noise of one round reaches over, got "
        f"{min_separation}: clients take part by turns, and once within them; lower bands or raise "
        "min_separation"
    )


def sampling_rule(sampling: str, noise: str) -> str | None:
    """Noise of clients is against a server that knows who takes part: coins amplify nothing then."""
    if noise == "server" or sampling == "fixed":
        return None
    return (
        f'= "{sampling}" amplifies only against those who do not know who takes part, and noise = '
        f'"{noise}" is against a server that does; set sampling = "fixed"'
    )


def clipping_rule(clipping: str, noise: str, correlation: str) -> str | None:
    """A clip that moves needs noise that moves with it; Laplace noise needs another norm."""
    if clipping == "adaptive" and noise != "server":
        return (
            f'= "adaptive" is for noise that the server adds, this is "{noise}"; set clipping = '
            '"fixed"'
        )
    if clipping == "adaptive" and correlation != "none":
        return (
            '= "adaptive" changes what noise is in proportion to, and correlated noise takes '
            'earlier noise back; choose "fixed" or "per_layer"'
        )
    if clipping != "fixed" and noise == "local_laplace":
        return (
            f'= "{clipping}" bounds an L2 norm, and noise = "local_laplace" needs an L1 norm of the '
            'whole change; set clipping = "fixed"'
        )
    return None


def correlation_rule(correlation: str, noise: str) -> str | None:
    """Only who knows the noise of earlier rounds can take it back."""
    if correlation == "none" or noise == "server":
        return None
    return (
        f'= "{correlation}" is for noise that the server adds, this is "{noise}"; set correlation = '
        '"none"'
    )
