"""LoRA: adapters travel and nothing else, on a tiny transformer with peft's adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from meadow.simulations.run import simulate

TASK = Path(__file__).with_name("apps") / "lora.py"
SETTINGS = """
[run]
rounds = 8
min_clients = 3
[strategy]
name = "lora"
[training]
batch_size = 10
optimizer = "adam"
learning_rate = 0.02
[simulation]
clients = 3
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app that tunes adapters of a model whose weights follow from the seed."""
    pytest.importorskip("peft")
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "task.py").write_text(TASK.read_text())
    (folder / "meadow.toml").write_text(SETTINGS)
    return folder


def test_only_adapters_travel_and_the_model_learns(app: Path, tmp_path: Path) -> None:
    """Each round's bytes are those of the adapters, and so is the model that is left."""
    summary = simulate(app, out=tmp_path / "run", executor="sequential")
    assert summary["status"] == "finished", summary
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert {name.split(".")[-3] for name in model if "lora_" in name} == {"lora_A", "lora_B"}
    assert all("lora_" in name or "modules_to_save" in name for name in model)
    size = sum(values.nbytes for values in model.values())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert f'"bytes_sent": {6 * size}, "bytes_received": {3 * size}' in lines[-1]
    assert summary["final"]["evaluate"]["accuracy"] > 0.8
    assert summary["final"]["server"]["accuracy"] > 0.8


@pytest.mark.parametrize(
    "settings",
    [
        ["privacy.secure_aggregation.enabled=true"],
        ["privacy.differential_privacy.enabled=true", "privacy.differential_privacy.epsilon=50"],
        ["robust.aggregation=median"],
        ["compression.upload=int8"],
    ],
    ids=["secure", "private", "robust", "compressed"],
)
def test_what_is_done_to_params_is_done_to_adapters(
    app: Path, tmp_path: Path, settings: list[str]
) -> None:
    """Masks, noise, robust rules and codecs take them as they take a whole model's params."""
    short = ["run.rounds=1", "evaluation.every=0", "training.epochs=1"]
    summary = simulate(app, overrides=[*short, *settings], out=tmp_path / "run")
    assert summary["status"] == "finished", summary
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert any(abs(values).max() > 0 for name, values in model.items() if "lora_B" in name)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("get_peft_model(Tiny(), settings)", "other(get_peft_model(Tiny(), settings))", "checksum"),
        ("return get_peft", "return thawed(get_peft", "learns and does not travel"),
    ],
)
def test_another_base_or_one_that_learns_is_refused(
    app: Path, tmp_path: Path, before: str, after: str, said: str
) -> None:
    """A client does not train what would be lost, nor on weights that the server has not."""
    text = (app / "task.py").read_text().replace(before, after)
    if "thawed" in after:
        text = text.replace("settings)\n\n\ndef load", "settings))\n\n\ndef load")
    text = text.replace(
        "def build():",
        """BUILT = []
def other(model):
    BUILT.append(model)
    if len(BUILT) > 1:
        with torch.no_grad():
            model.base_model.model.embed.weight.add_(1)
    return model

def thawed(model):
    model.base_model.model.norm.requires_grad_(True)
    return model

def build():""",
    )
    (app / "task.py").write_text(text)
    summary = simulate(app, out=tmp_path / "run", executor="sequential")
    assert summary["status"] == "failed" and said in summary["cause"]
