"""The folder of released tables of papers, for tests marked `released`."""

import os
from pathlib import Path

import pytest


def released_file(name: str) -> Path:
    """Return the path of a released table.

    Skip the test if ROUTELAWS_DATA is not set. If it is set, a missing file is a failure.
    """
    folder = os.environ.get("ROUTELAWS_DATA")
    if not folder:
        pytest.skip(f"ROUTELAWS_DATA is not set; set it to the folder of {name}")
    path = Path(folder) / name
    if not path.is_file():
        pytest.fail(f"ROUTELAWS_DATA is {folder}, which has no {name}")
    return path
