"""`meadow privacy`: what noise a budget asks for, what a run will have spent, and whether that holds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .output import Format, FormatOption, epsilon_text, say, show_rows

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
    clip: Annotated[float, typer.Option(help="the largest L2 norm of a client's change")] = 1.0,
    sampling: Annotated[str, typer.Option(help="poisson or fixed, as in meadow.toml")] = "poisson",
    noise: Annotated[
        str, typer.Option(help="server, distributed(_gaussian), local_gaussian or local_laplace")
    ] = "server",
    min_separation: Annotated[
        int, typer.Option(min=1, help="rounds until a client takes part again, at least")
    ] = 1,
    participations_max: Annotated[
        int | None, typer.Option(min=1, help="how often a client takes part at most")
    ] = None,
    correlation: Annotated[str, typer.Option(help="of the noise: none, banded or tree")] = "none",
    bands: Annotated[int | None, typer.Option(min=1, help="rounds that hang together")] = None,
    params: Annotated[
        int | None, typer.Option(min=1, help="how many the model has: prints the norm of the noise")
    ] = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Print the noise for a budget, or the epsilon of a noise, and the curve over rounds."""
    from ..privacy.dp.calibration import within_budget
    from ..privacy.dp.clipping import Clipping
    from ..privacy.dp.correlation import correlated
    from ..privacy.dp.plan import PrivacyPlan

    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigError("give --epsilon or --noise-multiplier: each follows from the other")
    if delta * clients >= 1:
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
        clipping=Clipping(norm=clip),
    )
    if epsilon is not None:
        made = within_budget(made, epsilon)
    _show(made, params, format)


@app.command()
def audit(
    app: Annotated[Path, typer.Argument(help="the app's folder")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="a setting, as section.key=value")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=100, max=10**6, help="of somebody there, and as many of nobody")
    ] = 20_000,
    format: FormatOption = Format.TEXT,
) -> None:
    """Try the app's mechanism out: prints what one release is claimed to cost, what trials prove that
    it costs at least, and what so many trials could have proven at most. Ends with 1 if the claim
    does not hold."""
    from ..config import load_config
    from ..private_config import build_privacy
    from ..simulations.privacy_audit import audit as audited

    config = load_config(app, overrides=set_ or ())
    made = build_privacy(config)
    if made is None:
        raise ConfigError(f"{app} does without differential privacy: there is nothing to audit")
    finding = audited(made, trials=trials)
    row = {**asdict(finding), "holds": finding.holds}
    if format is Format.JSON:
        say(format, "", audit=[row])
    else:
        shown = {
            key: epsilon_text(value) if key in EPSILONS else value for key, value in row.items()
        }
        show_rows(format, [shown], columns=AUDIT_COLUMNS, empty="")
    if not finding.holds:
        raise typer.Exit(1)


def _show(made: PrivacyPlan, params: int | None, format: Format) -> None:
    counts = sorted({max(1, made.rounds * part // CURVE_POINTS) for part in range(1, 11)})
    curve = [{"rounds": count, "epsilon": made.epsilon(count)} for count in counts]
    norm = None if params is None else made.noise_stddev * params**0.5
    after = made.noise_stddev_in_sum(made.rounds)
    cosine = None if params is None else _cosine(made, after * params**0.5)
    if format is Format.JSON:
        say(
            format,
            "",
            noise_multiplier=made.noise_multiplier,
            noise_stddev=made.noise_stddev,
            noise_norm=norm,
            noise_stddev_after=after,
            cosine_after=cosine,
            epsilon=made.epsilon(),
            delta=made.delta,
            sampling=made.sampling,
            participations=None if made.sampling == "poisson" else made.counted(made.rounds),
            curve=curve,
        )
        return
    say(format, f"noise_multiplier {made.noise_multiplier:.4f}")
    say(format, f"epsilon {epsilon_text(made.epsilon())} at delta = {made.delta:g}")
    where = "of the mean change" if made.correlation is None else "that a client is hidden by"
    say(
        format,
        f"noise on a param {where}: standard deviation {made.noise_stddev:.3g}, "
        f"{made.noise_multiplier * 100 / made.cohort:.3g} % of the clip",
    )
    if norm is not None and made.correlation is None:
        say(
            format,
            f"norm of the noise on all params: {norm:.3g}, {norm / made.clipping.norm:.3g} times "
            "the largest change of one client, and of their mean",
        )
    say(
        format,
        f"noise on a param after {made.rounds} rounds: standard deviation {after:.3g}, what "
        f"{(after / made.noise_stddev) ** 2:.4g} rounds of independent noise "
        "of this size would add up to",
    )
    if cosine is not None:
        say(
            format,
            "expected utility: if clients agree and move as far as the clip lets them, the whole "
            f"change has a cosine of {cosine:.3f} with the one without noise",
        )
    rows = [{**point, "epsilon": epsilon_text(point["epsilon"])} for point in curve]
    show_rows(format, rows, columns={"rounds": "ROUNDS", "epsilon": "EPSILON"}, empty="")


def _cosine(made: PrivacyPlan, noise_norm: float) -> float:
    """Return the cosine between the farthest change of a run and the same with the noise."""
    farthest = made.rounds * made.clipping.norm
    return float(farthest / (farthest**2 + noise_norm**2) ** 0.5)
