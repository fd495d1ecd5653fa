"""Attention layers: MHLA with every switch, and the baselines it is compared with."""

from .attention import Attention, attention_names, make_attention, register
from .gated import CausalLinearAttention, GatedLinearAttention, Retention, SimpleGatedLinearAttention
from .gated_deltanet import GatedDeltaNet
from .gated_grid import GatedGridAttention
from .linear import LinearAttention, VideoLinearAttention
from .mamba2 import Mamba2
from .mhla import MHLA, MHLAConfig
from .picture import FocusedAttention, InlineAttention
from .softmax import CausalSoftmaxAttention, SoftmaxAttention, VideoSoftmaxAttention

register("mhla")(MHLA)

__all__ = [
    "Attention",
    "CausalLinearAttention",
    "CausalSoftmaxAttention",
    "FocusedAttention",
    "GatedDeltaNet",
    "GatedGridAttention",
    "GatedLinearAttention",
    "InlineAttention",
    "LinearAttention",
    "MHLA",
    "MHLAConfig",
    "Mamba2",
    "Retention",
    "SimpleGatedLinearAttention",
    "SoftmaxAttention",
    "VideoLinearAttention",
    "VideoSoftmaxAttention",
    "attention_names",
    "make_attention",
    "register",
]
