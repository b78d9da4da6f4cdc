"""[compression]: what travels, made smaller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..schema.settings import setting

__all__ = ["CompressionConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionConfig:
    """[compression]: naming this table at all turns it on; docs/compression.md says more."""

    upload: Literal[
        "none", "fp16", "bf16", "int8", "int4", "top_k", "random_k", "low_rank", "auto"
    ] = setting(
        "int8",
        "how clients send what they changed of the params; auto: int8 from those whose lines are slow",
    )
    download: Literal["none", "fp16", "bf16", "int8", "auto"] = setting(
        "none", "how the server sends the params; auto: int8 to clients whose lines are slow"
    )
    fraction: float = setting(
        0.01,
        "of all values that are sent; the others are added to the client's next change",
        above=0,
        at_most=1,
        only={"upload": ("top_k", "random_k")},
    )
    rank: int = setting(
        4,
        "of what matrices are taken for; the difference is added to the client's next change",
        at_least=1,
        at_most=1024,
        only={"upload": ("low_rank",)},
    )
    zstd: bool = setting(
        False, "whether the result is packed by zstd too: pip install 'meadow-fl[compression]'"
    )
