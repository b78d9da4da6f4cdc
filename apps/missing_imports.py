"""The remedy for an app's import that fails."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version
from types import ModuleType

__all__ = ["remedy_of"]

PROJECT = "meadow-fl"
DISTRIBUTIONS = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "flwr_datasets": "flwr-datasets",
    "pytorch_lightning": "pytorch-lightning",
    "ray": "flwr",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "xgboost": "xgboost-cpu",
    "yaml": "pyyaml",
}
"""Packages that are installed under another name than they are imported by."""


def remedy_of(error: BaseException) -> str:
    """Return what an import that failed needs, as the end of a sentence; empty for other errors.

    Edge cases: a module that belongs to the app itself, or is misspelt, cannot be told from a package
        that is not installed; the text says both.
    """
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        package = error.obj.__name__.partition(".")[0]
        if package != "flwr":
            return ""
    elif isinstance(error, ImportError) and error.name:
        package = error.name.partition(".")[0]
    else:
        return ""
    if package == "flwr":
        return (
            f"; flwr {_version('flwr')} is installed, and the app was written for another version"
        )
    if not isinstance(error, ModuleNotFoundError):
        return ""
    distribution = DISTRIBUTIONS.get(package, package)
    extra = _extra_with(distribution)
    wanted = f"'{PROJECT}[{extra}]'" if extra else distribution
    return f"; is {package!r} installed, or misspelt? It comes with: pip install {wanted}"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "of an unknown version"


def _extra_with(distribution: str) -> str:
    """Return the first of Meadow's extras that installs a package, empty if none does."""
    try:
        lines = requires(PROJECT) or []
    except PackageNotFoundError:
        return ""
    for line in lines:
        name = re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if extra and extra[1] != "dev" and _normal(name) == _normal(distribution):
            return extra[1]
    return ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
