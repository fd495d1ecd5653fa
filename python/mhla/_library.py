"""Finds and loads the compiled operators, libmhla_torch."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path

import torch

_NAME = "libmhla_torch.so"


def _candidates() -> list[Path]:
    given = os.environ.get("MHLA_TORCH_LIBRARY")
    if given:
        return [Path(given)]
    here = Path(__file__).resolve().parent
    # An editable install has its library where site-packages are, its sources here.
    spec = importlib.util.find_spec(__package__)
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else [here]
    root = here.parent.parent  # a checkout, where the library is in the build folder
    return [*(place / "lib" / _NAME for place in places), *(root / "build" / p / "src" / "nn" / _NAME for p in ("release", "cuda"))]


def _load() -> Path:
    tried = _candidates()
    for path in tried:
        if path.is_file():
            torch.ops.load_library(str(path))
            return path
    places = ", ".join(str(path) for path in tried)
    raise ImportError(
        f"mhla: {_NAME} was not found (looked at {places}); install the package with "
        "`pip install --no-build-isolation .` or set MHLA_TORCH_LIBRARY"
    )


def _load_call():
    """`attention` of src/python/call.cpp; None where it was not compiled for this Python."""
    beside = path.with_name(f"mhla_call{sysconfig.get_config_var('EXT_SUFFIX')}")
    if not beside.is_file():
        return None
    spec = importlib.util.spec_from_file_location("mhla_call", beside)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.attention


path = _load()
call = _load_call()


def version() -> str:
    """The version of the compiled library."""
    return torch.ops.mhla.version()
