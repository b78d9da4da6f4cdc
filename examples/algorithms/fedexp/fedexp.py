"""FedExP (Jhunjhunwala, Wang, Joshi 2023): the more the clients disagree, the longer the step."""

from typing import Annotated

import numpy as np

import meadow


class Client(meadow.LocalAlgorithm):
    tensors = ("size/squared",)  # travels beside the params, and is summed like them

    def answer(self, end: meadow.LocalRound) -> meadow.Answer:
        return meadow.Answer(params=end.trained, auxiliary={self.tensors[0]: end.squared_delta()})


@meadow.builder
def fedexp(*, epsilon: Annotated[float, meadow.Bounds(above=0)] = 0.001) -> meadow.Algorithm:
    def apply(state: meadow.State, round: meadow.Aggregate) -> meadow.State:
        delta = {name: round.mean[name] - old for name, old in state.params.items()}
        squared = sum(float(np.square(each, dtype=np.float64).sum()) for each in delta.values())
        step = max(1.0, float(round.mean["size/squared"]) / (2 * (squared + epsilon)))
        return state.moved({name: old + step * delta[name] for name, old in state.params.items()})

    return meadow.averaging("fedexp", apply=apply, client=Client(), tensors={"size/squared": ()})
