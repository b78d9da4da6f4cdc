"""Data for a task: each adapter reads a site's data, checks them, and returns what torch needs.

Nothing here downloads or unpickles. Invalid data raise a `DataError` that names the file, the place
in it and the remedy.
"""

from __future__ import annotations

from .arrays import arrays
from .hugging_face import HuggingFaceRows, hugging_face
from .images import ImageFolder, images
from .leaf import Leaf, leaf
from .npz import npz
from .pair import Pair
from .table import table

__all__ = [
    "HuggingFaceRows",
    "ImageFolder",
    "Leaf",
    "Pair",
    "arrays",
    "hugging_face",
    "images",
    "leaf",
    "npz",
    "table",
]
