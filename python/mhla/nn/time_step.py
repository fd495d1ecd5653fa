"""How layers with learned time steps (gated DeltaNet, Mamba2) start."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def initial_decay_log(heads: int, low: float) -> Tensor:
    """log A `[H]`, A uniform in [low, 16)"""
    return torch.empty(heads).uniform_(low, 16.0).log()


def initial_step_bias(heads: int) -> Tensor:
    """`[H]`; softplus of it is log-uniform in [0.001, 0.1]"""
    low, high = math.log(0.001), math.log(0.1)
    step = torch.rand(heads).mul(high - low).add(low).exp().clamp_min(1e-4)
    return step.add(torch.expm1(step.neg()).neg().log())
