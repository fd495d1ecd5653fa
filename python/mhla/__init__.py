"""Multi-Head Linear Attention (arXiv 2601.07832) for PyTorch.

>>> layout = mhla.Grid((32, 32), block=(8, 8))                # 16 blocks of 64 tokens
>>> mixing = mhla.init.locality(layout)                       # [16, 16], the paper's start
>>> o = mhla.attention(q, k, v, mixing, layout=layout)        # q, k, v [B, 1024, H, D]
"""

from . import _library, init, models, nn
from .constraint import Constrained, constrain_
from .functional import attention, explain
from .layout import Grid, Layout, Sequence
from .mixing import resample
from .replace import replace_attention

__version__ = _library.version()

__all__ = [
    "Constrained",
    "Grid",
    "Layout",
    "Sequence",
    "attention",
    "constrain_",
    "explain",
    "init",
    "models",
    "nn",
    "replace_attention",
    "resample",
]
