"""The shapes of the benchmark: those of the paper's models, with what ours must reach."""

import dataclasses

from cases import Case, grid, sequence
from decode import Decode


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    case: Case
    target: tuple = ()  # forward, forward+backward, as multiples of the floor

    def forward_bytes(self):
        """q, k, v read once and o written once; a backward pass moves twice that again."""
        case = self.case
        elements = case.batch * case.heads * case.layout.tokens * 2 * (case.dk + case.width)
        return elements * case.dtype.itemsize

    def floor_bytes(self, what):
        return self.forward_bytes() * (1 if what == "forward" else 3)


def _vision(batch, heads, layout, d):
    return Case(layout, batch=batch, heads=heads, dk=d, strides="fused")


IMAGE_256 = grid((16, 16), block=(4, 4))
IMAGE_512 = grid((32, 32), block=(8, 8))
LANGUAGE = Case(sequence(2048, block=64), batch=16, heads=4, dk=128, dv=256, mask="causal",
                normalizer="none", feature_map="relu", scale=128**-0.5)

SHAPES = [
    Shape("DeiT-T", _vision(256, 3, IMAGE_256, 64), (1.5, 2.2)),
    Shape("DiT-XL", _vision(64, 16, IMAGE_256, 72), (1.6, 2.4)),
    Shape("DiT-S-256", _vision(256, 6, IMAGE_256, 64)),
    Shape("DiT-S-512", _vision(128, 6, IMAGE_512, 64), (1.5, 2.2)),
    Shape("VLT", _vision(64, 4, grid((56, 56), block=(8, 8)), 32), (1.8, 2.5)),
    Shape("Sana", _vision(8, 36, grid((64, 64), block=(8, 8)), 32), (1.8, 2.5)),
    Shape("Wan", _vision(1, 12, grid((21, 30, 50), blocks=(3, 5, 10)), 128), (2.0, 2.8)),
    Shape("DiT-S-4096", _vision(1, 6, grid((256, 256), block=(16, 16)), 64), (2.0, 2.8)),
    Shape("LM", LANGUAGE, (2.0, 3.0)),
    Shape("DeiT-T-d96", _vision(256, 3, IMAGE_256, 96)),
    Shape("DiT-S-512-d96", _vision(128, 6, IMAGE_512, 96)),
    Shape("Wan-ragged", _vision(1, 12, grid((21, 30, 52), blocks=(3, 5, 10)), 128)),
]

DECODE = [
    Decode("decode-1", dataclasses.replace(LANGUAGE, batch=1), states=24),
    Decode("decode-64", dataclasses.replace(LANGUAGE, batch=64), states=3),
]

# Small enough for the reference on a CPU: the benchmark tests itself with it.
TINY = [Shape("tiny", _vision(2, 2, grid((8, 8), block=(4, 4)), 16), (2.0, 3.0)),
        Shape("tiny-LM", dataclasses.replace(LANGUAGE, layout=sequence(64, block=16), batch=2,
                                             dk=16, dv=32))]
