"""Finds the helpers beside the tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import program  # noqa: E402


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One uninterrupted run: its configuration and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    config = program.write_config(folder)
    program.mhla("train", config, "--out", folder / "run")
    return config, folder / "run"
