"""What runs at each site: five steps on all of its digits, each time a model comes."""

import digits
import nvflare.client as flare
import torch


class Softmax(torch.nn.Linear):
    """The model, beginning with zeros."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def reset_parameters(self) -> None:
        for param in self.parameters():
            torch.nn.init.zeros_(param)


def accuracy(model: torch.nn.Module) -> float:
    """Evaluate on the digits that no client has."""
    inputs, targets = map(torch.from_numpy, digits.holdout())
    return (model(inputs).argmax(dim=1) == targets).float().mean().item()


def main() -> None:
    """Train and evaluate as long as models come."""
    flare.init()
    site = int(flare.get_site_name().removeprefix("site-")) - 1
    inputs, targets = map(torch.from_numpy, digits.client(site))
    model = Softmax()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        metrics = {"accuracy": accuracy(model)}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        steps = {"NUM_STEPS_CURRENT_ROUND": len(targets)}
        flare.send(flare.FLModel(params=model.state_dict(), metrics=metrics, meta=steps))


if __name__ == "__main__":
    main()
