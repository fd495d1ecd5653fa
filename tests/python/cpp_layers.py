"""Runs the C++ layers from pytest."""

from __future__ import annotations

import os

import mhla  # noqa: F401  loads the operators first
import pytest
import torch


def ops():
    """`torch.ops.mhla_test`, or a skip that says what is missing."""
    library = os.environ.get("MHLA_TEST_LIBRARY")
    if not library:
        pytest.skip("MHLA_TEST_LIBRARY is not set: ctest sets it")
    torch.ops.load_library(library)
    return torch.ops.mhla_test


def text(options: dict) -> str:
    """`dim=8 heads=2 grid=3x4`"""

    def value(key, v):
        if isinstance(v, bool):
            return str(v).lower()
        return ("," if key == "clamp" else "x").join(map(str, v)) if isinstance(v, (tuple, list)) else str(v)

    return " ".join(f"{key}={value(key, v)}" for key, v in options.items())
