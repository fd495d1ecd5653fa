"""Attention layers: MHLA with every switch, and the baselines it is compared with."""

from .mhla import MHLA, MHLAConfig

__all__ = ["MHLA", "MHLAConfig"]
