"""A tiny transformer whose adapters alone are trained; its weights follow from the seed."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import meadow


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.query, self.value = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.register_buffer("calls", torch.zeros(()))
        self.head = nn.Linear(16, 2)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        mixed, _ = self.attention(self.query(hidden), hidden, self.value(hidden))
        self.calls += 1
        return self.head(self.norm(hidden + mixed).mean(1))


def build():
    settings = LoraConfig(
        r=4, lora_alpha=16, target_modules=["query", "value"], modules_to_save=["head"]
    )
    return get_peft_model(Tiny(), settings)


def load(site):
    generator = torch.Generator().manual_seed(site.index)
    tokens = torch.randint(0, 16, (120, 6), generator=generator)
    targets = (tokens.float().mean(1) > 7.5).long()
    return meadow.ClientData(train=(tokens[:90], targets[:90]), test=(tokens[90:], targets[90:]))


SEEN = []
task = meadow.Task(
    model=build,
    loss=lambda out, want: nn.functional.cross_entropy(out, want, reduction="none"),
    metrics={"accuracy": lambda out, want: (out.argmax(1) == want).float()},
    client_data=load,
    server_data=lambda: load(meadow.Site(index=99, count=100)).train,
)
