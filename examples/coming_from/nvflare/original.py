"""Federated averaging of softmax regression on digits, with NVFlare: the job."""

import json
from pathlib import Path

import digits
import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from train import Softmax, accuracy

if __name__ == "__main__":
    recipe = FedAvgRecipe(
        name="digits",
        model=Softmax(),
        min_clients=digits.CLIENTS,
        num_rounds=10,
        train_script="train.py",
    )
    run = recipe.execute(SimEnv(num_clients=digits.CLIENTS, workspace_root="runs"))
    job = Path(run.get_result(), "server", "simulate_job")
    rounds = (job / "metrics" / "round_metrics.jsonl").read_text().splitlines()
    received = [json.loads(line)["aggregated_metrics"][0]["value"] for line in rounds]
    model = Softmax()
    model.load_state_dict(torch.load(job / "app_server" / "FL_global_model.pt")["model"])
    weight, bias = (param.detach().numpy() for param in model.parameters())
    digits.report([*received[1:], accuracy(model)], weight, bias)
