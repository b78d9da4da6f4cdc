"""How a run's messages are compressed: said by the server with every instruction."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord

from ..errors import ProtocolError
from ..flower.messages import dtype_of
from ..strategies.algorithms.algorithm import Params
from ..strategies.rounds.checks import Forms, TensorForm

__all__ = ["DOWNLOADS", "RECORD", "UPLOADS", "CompressionTerms", "forms_in", "forms_text"]

RECORD = "compression"
"""The ConfigRecord of an instruction that has them."""
DOWNLOADS = ("none", "fp16", "bf16", "int8")
UPLOADS = (*DOWNLOADS, "int4", "top_k", "random_k", "low_rank")
VALUES_MAX = 1 << 36
FORMS = "forms"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionTerms:
    """Which codec is for the changes (`upload`) and which for the params (`download`).

    `fraction` is of the values that sparse codecs keep, `rank` that of a low-rank one; `zstd`
    packs the result once more; `seed` is of all that is random.
    """

    upload: str = "none"
    download: str = "none"
    fraction: float = 0.01
    rank: int = 4
    zstd: bool = False
    seed: int = 0

    def record(self) -> ConfigRecord:
        """Return them as they are sent."""
        return ConfigRecord(
            {
                "upload": self.upload,
                "download": self.download,
                "fraction": self.fraction,
                "rank": self.rank,
                "zstd": self.zstd,
                "seed": self.seed,
            }
        )

    @classmethod
    def read(cls, record: ConfigRecord) -> CompressionTerms:
        """Return the terms in a record.

        Raises:
            ProtocolError: they are none that this version knows.
        """
        said = {name: record.get(name) for name in cls.__dataclass_fields__}
        fraction, rank, seed = said["fraction"], said["rank"], said["seed"]
        if (
            said["upload"] not in UPLOADS
            or said["download"] not in DOWNLOADS
            or not isinstance(fraction, float)
            or not 0 < fraction <= 1
            or type(rank) is not int
            or not 1 <= rank <= 1 << 16
            or type(seed) is not int
            or type(said["zstd"]) is not bool
        ):
            raise ProtocolError(f"the terms of compression are unknown: {said!s:.300}")
        return cls(**said)  # type: ignore[arg-type]


def forms_text(params: Params) -> str:
    """Return names, dtypes and shapes as a text that `forms_in` reads."""
    return json.dumps([[name, old.dtype.name, list(old.shape)] for name, old in params.items()])


def forms_in(record: Mapping[str, object]) -> Forms:
    """Return the forms that a server says its params have.

    Raises:
        ProtocolError: it says none, or impossible ones.
    """
    try:
        said = json.loads(str(record[FORMS]))
        forms = {
            str(name): TensorForm(_shape(shape), dtype_of(dtype)) for name, dtype, shape in said
        }
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a compressed model's forms cannot be read: {error}") from None
    if sum(math.prod(form.shape) for form in forms.values()) > VALUES_MAX:
        raise ProtocolError(f"a compressed model has more than {VALUES_MAX} values")
    return forms


def _shape(shape: Sequence[object]) -> tuple[int, ...]:
    sides = tuple(side for side in shape if type(side) is int and 0 <= side <= VALUES_MAX)
    if len(sides) != len(shape) or len(sides) > 64:
        raise ValueError(f"{shape!s:.100} is no shape")
    return sides
