"""Tags: words that an administrator gives sites, and a run may ask of its clients."""

from __future__ import annotations

import re

__all__ = ["TAG_FORM", "is_tag"]

TAG_FORM = "a tag is 1 to 40 of a-z, 0-9, '.', '_', '-', the first a letter or a digit"
_TAG = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


def is_tag(text: str) -> bool:
    """Return whether a text can be a tag."""
    return _TAG.fullmatch(text) is not None
