"""Build the strict accelerator: `python build.py FOLDER` makes FOLDER a place for PYTHONPATH.

It is a program, as torch loads what it builds, and a process keeps the devices that it has loaded.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from torch.utils import cpp_extension

HERE = Path(__file__).parent
SOURCE, MODULE = HERE / "strict_accelerator.cpp", HERE / "strict_accelerator.py"
METADATA = "Metadata-Version: 2.1\nName: strict-accelerator\nVersion: 1\n"
ENTRY_POINTS = "[torch.backends]\nstrict = strict_accelerator:load\n"


def main(folder: Path) -> None:
    """Compile the library, and lay its module and its entry point beside it."""
    cpp_extension.load(
        "strict_operations",
        [str(SOURCE)],
        build_directory=str(folder),
        extra_cflags=["-O1"],
        is_python_module=False,
    )
    shutil.copy(MODULE, folder)
    described = folder / "strict_accelerator-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(METADATA)
    (described / "entry_points.txt").write_text(ENTRY_POINTS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
