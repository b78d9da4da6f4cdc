"""Which features of Flower's app API are tested, each by an app of ours: simulated and deployed.

`docs/flower.py` makes the table in docs/flower.md of this; both tests run every app that it names,
and hold the numbers that the app writes against those of Flower's own engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

APPS = Path(__file__).parent / "flower_apps"
CLIENTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An app of `flower_apps/`, and what is set of its run config."""

    app: str
    settings: tuple[str, ...] = ()
    tolerance: float = 1e-6
    """Relative: the order of clients, and so of a sum, is Flower's own choice."""

    @property
    def name(self) -> str:
        return "-".join((self.app, *self.settings))


VERTICAL, SURVEY = Case(app="vertical"), Case(app="survey")
OLDER, HISTOGRAM = Case(app="older"), Case(app="histogram")
SECURE = Case(app="secure_sum", tolerance=1e-4)  # its quantization draws random numbers
NOISY, TREES, LOGISTIC = Case(app="noisy"), Case(app="trees"), Case(app="logistic")
AUTOENCODER = Case(app="autoencoder", settings=("private=true",))

FEATURES = {
    "Message API: `ServerApp.main(grid, context)` with `FedAvg`": LOGISTIC,
    "named actions: `query.x`, `train.y`": VERTICAL,
    "messages that are pushed and never pulled": VERTICAL,
    "clients that remember: `Context.state`": VERTICAL,
    "runs of questions only; answers that are lists and text": SURVEY,
    "older API: `ServerAppComponents`, `server_fn`, `client_fn`, `NumPyClient`": OLDER,
    "older strategies of one's own; params that are text; pandas; survival times": HISTOGRAM,
    "workflows: `LegacyContext`, `SecAggPlusWorkflow` with its mod": SECURE,
    "mods: one's own, and `fixedclipping_mod` of one function": NOISY,
    "strategies: a subclass of one's own in a DP wrapper": NOISY,
    "logs, prints and files": NOISY,
    "XGBoost: `FedXgbBagging`": TREES,
    "scikit-learn": LOGISTIC,
    "PyTorch: a VAE under a trainer like Lightning's": AUTOENCODER,
    "PyTorch: DP-SGD by Opacus": AUTOENCODER,
}
CASES = list(dict.fromkeys(FEATURES.values()))
DEPLOYED = CASES
"""Cases that a real federation runs, too."""
