"""An algorithm of the app's own, whose client's half corrects the steps and keeps something."""

from __future__ import annotations

import torch

import meadow


class Pulled(meadow.LocalAlgorithm):
    """Pulls the params to where the round began, and along what the last round changed."""

    keeps = "last"

    def corrected(
        self,
        gradient: torch.Tensor,
        param: torch.Tensor,
        start: torch.Tensor,
        own: torch.Tensor | None,
        shared: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the corrected gradient."""
        assert own is not None
        return gradient + 0.5 * (param - start) - 0.1 * own

    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        """Return the params, and keep the delta."""
        kept = {f"last/{name}": end.delta_of(name) for name in end.learned}
        return meadow.Answer(params=end.trained, client_state=kept)


@meadow.builder(keeps="its last delta")
def pulled() -> meadow.Algorithm:
    """Return averaging of clients that train so."""
    return meadow.averaging("pulled", client=Pulled())
