"""`meadow privacy`: plan the noise or the epsilon of a run, and audit its mechanisms."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config.sections.privacy import DifferentialPrivacyConfig
from ..deprecated import warn_renamed
from ..errors import ConfigError
from ..reports.sentences import epsilon_text
from .completion import choice
from .output import Format, FormatOption, say, show_rows

if TYPE_CHECKING:
    from ..privacy.dp.plan import PrivacyPlan

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Plan and audit a run with differential privacy.")
CURVE_POINTS = 10
EPSILONS = ("claimed", "measured", "measurable")
AUDIT_COLUMNS = {
    "mechanism": "MECHANISM",
    "trials": "TRIALS",
    "delta": "DELTA",
    "claimed": "CLAIMED EPSILON",
    "measured": "PROVEN AT LEAST",
    "measurable": "PROVABLE AT MOST",
    "holds": "HOLDS",
}


@app.callback()
def _group() -> None:
    """Plan and audit a run with differential privacy."""


@app.command()
def plan(
    clients: Annotated[int, typer.Option(min=1, help="the population")],
    cohort: Annotated[float, typer.Option(min=0, help="clients in a round, on average")],
    rounds: Annotated[int, typer.Option(min=1, max=10**6)],
    delta: Annotated[float, typer.Option(help="less than 1 / clients")],
    epsilon: Annotated[float | None, typer.Option(help="the budget: prints its noise")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="or the noise: prints its epsilon")
    ] = None,
    clip_norm: Annotated[float, typer.Option(help="the largest L2 norm of a client's delta")] = 1.0,
    clip: Annotated[float | None, typer.Option(hidden=True)] = None,
    sampling: Annotated[
        str, choice(DifferentialPrivacyConfig, "sampling", help="as in meadow.toml")
    ] = "poisson",
    noise: Annotated[
        str, choice(DifferentialPrivacyConfig, "noise", help="who adds the noise")
    ] = "server",
    min_separation: Annotated[
        int, typer.Option(min=1, help="rounds until a client takes part again, at least")
    ] = 1,
    participations_max: Annotated[
        int | None, typer.Option(min=1, help="how often a client takes part at most")
    ] = None,
    correlation: Annotated[
        str, choice(DifferentialPrivacyConfig, "correlation", help="between rounds' noise")
    ] = "none",
    bands: Annotated[int | None, typer.Option(min=1, help="correlated rounds")] = None,
    corrupt_fraction: Annotated[
        float,
        typer.Option(min=0, max=1, help="distributed noise: as in privacy.secure_aggregation"),
    ] = 0.33,
    dropout_fraction: Annotated[
        float,
        typer.Option(min=0, max=1, help="distributed noise: as in privacy.secure_aggregation"),
    ] = 0.3,
    params: Annotated[
        int | None, typer.Option(min=1, help="how many the model has: prints the norm of the noise")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Print the noise for a budget, or the epsilon of a noise, and the curve over rounds."""
    from ..privacy.dp.accounting.calibration import within_budget
    from ..privacy.dp.correlated.correlation import correlated
    from ..privacy.dp.mechanisms.clipping import Clipping
    from ..privacy.dp.plan import PrivacyPlan
    from ..privacy.dp.plan_rules import budget_rule, delta_rule

    if clip is not None:
        warn_renamed("meadow privacy plan", "--clip", "--clip-norm")
    if budget_rule(epsilon, noise_multiplier) is not None:
        raise ConfigError("give --epsilon or --noise-multiplier: each follows from the other")
    if delta_rule(delta, clients) is not None:
        raise ConfigError(f"--delta must be less than 1 / {clients}, got {delta:g}")
    made = PrivacyPlan(
        noise_multiplier=noise_multiplier or 1.0,
        delta=delta,
        rounds=rounds,
        cohort=cohort,
        population=clients,
        sampling=sampling,  # type: ignore[arg-type]
        noise=noise,  # type: ignore[arg-type]
        separation=min_separation,
        participations_max=participations_max,
        correlation=correlated(correlation, rounds=rounds, separation=min_separation, bands=bands),
        clipping=Clipping(clip_norm=clip_norm if clip is None else clip),
    )
    if epsilon is not None:
        made = within_budget(made, epsilon)
    more = 1.0
    if made.noise_terms.is_distributed:
        more = _noise_of_all(made, params or 1, corrupt_fraction, dropout_fraction)
    _show(made, params, more, format)


@app.command()
def audit(
    app: Annotated[Path, typer.Argument(help="the app's folder")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="a setting, as section.key=value")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=100, max=10**6, help="with a client's update, and as many without")
    ] = 20_000,
    format: FormatOption = Format.TEXT,
) -> None:
    """Audit the app's mechanisms: for one release of each, print the claimed epsilon, the lower
    bound that the trials prove, and the largest bound that so many trials can prove. Exit code 1
    if a claim does not hold."""
    from ..config.load import load_config
    from ..config.rules.privacy import build_privacy
    from ..simulations.privacy_audit import audit as audited

    config = load_config(app, overrides=set_ or ())
    made = build_privacy(config)
    if made is None:
        raise ConfigError(f"{app} does without differential privacy: there is nothing to audit")
    findings = audited(made, trials=trials)
    rows = [{**asdict(each), "holds": each.holds} for each in findings]
    if format is Format.JSON:
        say(format, "", audit=rows)
    else:
        shown = [
            {key: epsilon_text(value) if key in EPSILONS else value for key, value in row.items()}
            for row in rows
        ]
        show_rows(format, shown, columns=AUDIT_COLUMNS, empty="")
    if not all(each.holds for each in findings):
        raise typer.Exit(1)


def _noise_of_all(made: PrivacyPlan, params: int, corrupt: float, dropout: float) -> float:
    """Return the noise of a secure sum without dropouts, relative to the accounted noise, which is
    that of the smallest number of honest clients that may remain."""
    from ..privacy.secagg.protocol.noisy_encoding import NoisyEncoding
    from ..privacy.secagg.terms.terms import SecureTerms

    clients = round(made.cohort)
    terms = SecureTerms(
        corrupt=corrupt,
        dropout=dropout,
        metrics=(),
        clip_norm=made.clipping.clip_norm,
        noise_multiplier=made.noise_multiplier,
        noise_law=made.noise_terms.law,
    )
    encoding = terms.plan(clients=clients, length=params).encoding
    assert isinstance(encoding, NoisyEncoding)
    stddev = (clients * encoding.grid.client_variance) ** 0.5 / encoding.scale
    return float(stddev / (made.noise_multiplier * made.clipping.clip_norm))


def _show(made: PrivacyPlan, params: int | None, more: float, format: Format) -> None:
    """Print a plan; `more` is the ratio of the noise to the accounted noise."""
    counts = sorted({max(1, made.rounds * part // CURVE_POINTS) for part in range(1, 11)})
    curve = [{"rounds": count, "epsilon": made.epsilon(count)} for count in counts]
    stddev, after = made.noise_stddev * more, made.noise_stddev_in_sum(made.rounds) * more
    norm = None if params is None else stddev * params**0.5
    any_two = made.epsilon_of_any_two() if made.noise_terms.is_local else None
    cosine = None if params is None else _cosine(made, after * params**0.5)
    if format is Format.JSON:
        say(
            format,
            "",
            noise_multiplier=made.noise_multiplier,
            noise_stddev=stddev,
            noise_norm=norm,
            noise_stddev_after=after,
            cosine_after=cosine,
            epsilon=made.epsilon(),
            epsilon_any_two=any_two,
            delta=made.delta,
            sampling=made.sampling,
            participations=None if made.sampling == "poisson" else made.counted(made.rounds),
            curve=curve,
        )
        return
    say(format, f"noise_multiplier {made.noise_multiplier:.4f}")
    say(format, f"epsilon {epsilon_text(made.epsilon())} at delta = {made.delta:g}")
    if any_two is not None:
        say(
            format,
            "that is for a client whose updates are left out; for any other updates in their place, "
            f"which differ by up to twice the clip, it is {epsilon_text(any_two)}",
        )
    where = "of the mean delta" if made.correlation is None else "that hides a client"
    say(
        format,
        f"noise on a param {where}: standard deviation {stddev:.3g}, "
        f"{stddev * 100 / made.clipping.clip_norm:.3g} % of the clip",
    )
    if more != 1:
        say(
            format,
            f"that is for a round without dropouts: {more:.3g} times the accounted noise, which is that "
            "of the smallest number of honest clients in a secure sum",
        )
    if norm is not None and made.correlation is None:
        say(
            format,
            f"norm of the noise on all params: {norm:.3g}, {norm / made.clipping.clip_norm:.3g} times "
            "the largest delta of one client, and of their mean",
        )
    say(
        format,
        f"noise on a param after {made.rounds} rounds: standard deviation {after:.3g}, what "
        f"{(after / stddev) ** 2:.4g} rounds of independent noise "
        "of this size would add up to",
    )
    if cosine is not None:
        say(
            format,
            "expected utility: if clients agree and move as far as the clip norm allows, the "
            f"run's delta has a cosine of {cosine:.3f} with the one without noise",
        )
    rows = [{**point, "epsilon": epsilon_text(point["epsilon"])} for point in curve]
    show_rows(format, rows, columns={"rounds": "ROUNDS", "epsilon": "EPSILON"}, empty="")


def _cosine(made: PrivacyPlan, noise_norm: float) -> float:
    """Return the cosine between the largest possible delta of a run and the same with noise."""
    farthest = made.rounds * made.clipping.clip_norm
    return float(farthest / (farthest**2 + noise_norm**2) ** 0.5)
