"""The data sets that lie beside the project on some machines."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with gsm8k/ and math500_test.json: `$GRPOJAX_DATA`, or `../shared/data` beside the project."""
    beside = Path(__file__).parents[3] / "shared"
    for folder in (Path(os.environ.get("GRPOJAX_DATA", beside)), beside):
        for place in (folder / "data", folder):
            if (place / "math500_test.json").exists():
                return place
    pytest.skip("no data sets here: neither in $GRPOJAX_DATA nor beside the project in ../shared/data")
