"""How a run's messages are compressed: the terms that the server sends with every instruction."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord

from ..errors import ProtocolError
from ..flower.messages import dtype_of
from ..strategies.algorithms.algorithm import Params
from ..strategies.rounds.checks import Forms, TensorForm

__all__ = ["AUTO", "DOWNLOADS", "RECORD", "UPLOADS", "CompressionTerms", "forms_in", "forms_text"]

RECORD = "compression"
"""Name of the ConfigRecord that holds the terms in an instruction."""
DOWNLOADS = ("none", "fp16", "bf16", "int8")
UPLOADS = (*DOWNLOADS, "int4", "top_k", "random_k", "low_rank")
AUTO = "auto"
"""In the place of a codec: int8 for clients with slow lines, none for the others. Clients never see it."""
VALUES_MAX = 1 << 36
FORMS = "forms"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionTerms:
    """The codecs of the clients' deltas (`upload`) and of the server's params (`download`).

    `fraction` is the share of values that sparse codecs keep, in (0, 1]; `rank` is that of
    low-rank factors; `zstd` also compresses the encoded bytes; `seed` seeds all random choices.
    A codec may be `auto` before `of_line`.
    """

    upload: str = "none"
    download: str = "none"
    fraction: float = 0.01
    rank: int = 4
    zstd: bool = False
    seed: int = 0

    def of_line(self, *, slow: bool) -> CompressionTerms:
        """Return the terms for a client: `auto` is replaced by what a slow line gets, or another one."""
        codec = "int8" if slow else "none"
        upload, download = (
            codec if each == AUTO else each for each in (self.upload, self.download)
        )
        return replace(self, upload=upload, download=download)

    def record(self) -> ConfigRecord:
        """Return the terms as a ConfigRecord."""
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
            ProtocolError: a term is missing or has a value that this version does not know.
        """
        entries = {name: record.get(name) for name in cls.__dataclass_fields__}
        fraction, rank, seed = entries["fraction"], entries["rank"], entries["seed"]
        if (
            entries["upload"] not in UPLOADS
            or entries["download"] not in DOWNLOADS
            or not isinstance(fraction, float)
            or not 0 < fraction <= 1
            or type(rank) is not int
            or not 1 <= rank <= 1 << 16
            or type(seed) is not int
            or type(entries["zstd"]) is not bool
        ):
            raise ProtocolError(f"the terms of compression are unknown: {entries!s:.300}")
        return cls(**entries)  # type: ignore[arg-type]


def forms_text(params: Params) -> str:
    """Return the names, dtypes and shapes as JSON, which `forms_in` reads."""
    return json.dumps([[name, old.dtype.name, list(old.shape)] for name, old in params.items()])


def forms_in(record: Mapping[str, object]) -> Forms:
    """Return the names, dtypes and shapes of the server's params, from an instruction's record.

    Raises:
        ProtocolError: they are missing or invalid, or have more than `VALUES_MAX` values.
    """
    try:
        entries = json.loads(str(record[FORMS]))
        forms = {
            str(name): TensorForm(_shape(shape), dtype_of(dtype)) for name, dtype, shape in entries
        }
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a compressed model's forms cannot be read: {error}") from None
    if sum(math.prod(form.shape) for form in forms.values()) > VALUES_MAX:
        raise ProtocolError(f"a compressed model has more than {VALUES_MAX} values")
    return forms


def _shape(shape: Sequence[object]) -> tuple[int, ...]:
    sides = tuple(side for side in shape if type(side) is int and 0 <= side <= VALUES_MAX)
    if len(sides) != len(shape) or len(sides) > 64:
        raise ValueError(f"{shape!s:.100} is not a shape")
    return sides
