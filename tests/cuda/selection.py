"""The cases: sizes at every tile edge, every form and memory layout. Small ones on the CPU."""

import dataclasses
import functools

import torch

from cases import Case, Layout, grid, sequence

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BLOCK_TOKENS = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 210, 256)
WIDTHS = (8, 16, 32, 64, 72, 80, 96, 128, 256)


def tile_edges():
    """Four blocks and a ragged fifth, at each number of tokens a block may have beside a tile."""
    return [Case(sequence(4 * n + (n + 1) // 2, block=n), heads=3, dk=32) for n in BLOCK_TOKENS]


def widths():
    cases = [Case(sequence(150, block=64), dk=d) for d in WIDTHS if d != 64]
    cases += [Case(sequence(150, block=64), dk=dk, dv=dv)
              for dk, dv in ((64, 128), (128, 64), (128, 256), (32, 96), (72, 40), (33, 5), (1, 1))]
    # Of few columns: the edges of what is kept in f32. A first token whose few scores are all zero would
    # have gradients beyond f16, so a causal mask takes the map without zeros.
    cases += [Case(sequence(150, block=70), dk=dk, dv=dv, mask=mask, dtype=dtype,
                   feature_map="relu_eps" if mask == "none" else "elu1")
              for dk, dv, mask, dtype in ((16, 17, "none", BF16), (17, 16, "causal", F16), (32, 16, "none", F16),
                                          (16, 33, "causal", BF16), (64, 16, "causal", F16), (16, 65, "none", BF16))]
    return cases


def layouts():
    return [
        Case(grid((14, 14), block=(4, 4)), heads=3),
        Case(grid((14, 14), blocks=(4, 4)), heads=3),
        Case(grid((16, 16), block=(4, 4)), heads=3),
        Case(grid((16, 16), block=(4, 4)), heads=2, dk=72),
        Case(grid((32, 32), block=(8, 8)), heads=2),
        Case(grid((21, 30, 52), blocks=(3, 5, 10)), batch=1, heads=1, dk=128),
        Case(grid((5, 7, 9), block=(2, 3, 4)), dk=32),
        Case(grid((3, 10, 11), blocks=(3, 1, 2)), dk=96),
        Case(sequence(100, block=256)),  # one block: d_mixing cancels to zero
        Case(sequence(1, block=1), batch=1, heads=1),
        Case(sequence(600, block=4), dk=32),  # 150 blocks
        Case(sequence(1000, blocks=7), dk=64),
        Case(sequence((100, 32, 7, 0, 1, 129), block=64), batch=1),
        Case(sequence((64, 64, 200), block=16), batch=1, heads=3, dk=128),
        Case(Layout(((14, 14), (8, 12), (4, 5)), blocks=(2, 3)), batch=1, dk=32),
        Case(sequence(100, block=16), layout_k=sequence(77, block=32)),
        Case(grid((14, 14), block=(4, 4)), layout_k=sequence(77, blocks=3), heads=3, dk=72),
    ]


def forms():
    square, line = grid((14, 14), block=(4, 4)), sequence(200, block=64)
    cases = []
    for mask in ("none", "causal", "block_causal"):
        for normalizer in ("exact", "shared_position", "none"):
            for layout in (square, line):
                if (mask, normalizer, layout) != ("none", "exact", square):
                    cases.append(Case(layout, mask=mask, normalizer=normalizer))
    for name in ("relu", "elu1", "identity"):
        cases.append(Case(square, feature_map=name))
        cases.append(Case(line, feature_map=name, mask="causal", normalizer="none", scale=0.125))
    cases += [
        Case(square, feature_map="identity", separate=True, heads=3),
        Case(square, feature_map="identity", separate=True, normalizer="shared_position"),
        Case(line, feature_map="identity", separate=True, mask="causal"),
        Case(square, per_head=True, heads=3),
        Case(line, per_head=True, mask="causal", normalizer="none"),
        Case(square, eps=0.5, scale=0.25),
        Case(sequence((100, 32, 7, 129), block=64), batch=1, mask="causal", normalizer="none"),
        Case(sequence((100, 32, 7, 129), block=64), batch=1, mask="block_causal"),
        Case(sequence((100, 32, 7), block=16), batch=1, normalizer="shared_position"),
        Case(sequence(256, block=64), dk=128, dv=256, mask="causal", normalizer="none",
             feature_map="relu", scale=128**-0.5),
        Case(sequence(2048, block=64), batch=1, heads=1, dk=128, dv=256, mask="causal",
             normalizer="none", feature_map="relu", scale=128**-0.5),
    ]
    return cases


def precisions():
    square, line = grid((14, 14), block=(4, 4)), sequence(150, block=64)
    return [Case(layout, dtype=dtype, mask=mask)
            for dtype in (F16, F32)
            for layout, mask in ((square, "none"), (line, "causal"))] + [
        Case(square, dtype=F16, dk=72, normalizer="shared_position"),
        Case(square, dtype=F32, dk=128, dv=64, normalizer="none"),
    ]


def memory():
    square = grid((14, 14), block=(4, 4))
    cases = [Case(square, strides=kind, heads=3, dk=d)
             for kind in ("fused", "heads_first", "misaligned") for d in (64, 72)]
    return cases + [
        Case(sequence(150, block=64), strides="fused", mask="causal", normalizer="none"),
        Case(sequence(150, block=64), strides="misaligned", dk=33, dv=17, mask="causal"),
        Case(grid((5, 7, 9), block=(2, 3, 4)), strides="misaligned", dk=128),
    ]


def batches():
    """More CTAs than fit the chip at once, and indices that are not powers of two."""
    return [
        Case(grid((16, 16), block=(4, 4)), batch=37, heads=5),
        Case(sequence(190, block=64), batch=33, heads=5, dk=128, mask="causal", normalizer="none"),
    ]


def whole_heads():
    """What the backward of whole heads (cuda.dense) adds: several slots of 16 rows in a block."""
    return [
        Case(sequence(200, block=256)),  # one block: d_mixing cancels to zero
        Case(sequence(256, block=16), layout_k=sequence(200, blocks=5), heads=3),
        Case(sequence(256, block=16), layout_k=sequence(200, blocks=5), heads=3, dk=96, dv=88),
        Case(grid((16, 16), block=(4, 4)), batch=67, heads=6, dk=80, strides="fused"),
        Case(grid((16, 16), block=(4, 4)), batch=34, heads=4, dk=96, dv=40, dtype=F16),
    ]


def boxes():
    """Blocks of 64 tokens, which cuda.fused fetches as boxes: shapes of box, numbers of blocks and
    heads that leave thread blocks without work, tensors that the copy engine cannot address."""
    square, wide = grid((32, 32), block=(8, 8)), grid((56, 56), block=(8, 8))
    return [
        Case(square, strides="fused", heads=3, batch=3),
        Case(square, strides="heads_first", normalizer="none", scale=0.125),
        Case(square, strides="misaligned"),
        Case(square, feature_map="elu1"),
        Case(square, feature_map="identity"),
        Case(square, feature_map="relu", per_head=True, heads=3),
        Case(square, batch=67, heads=6, strides="fused"),
        Case(sequence(64, block=64)),
        Case(sequence(832, block=64), batch=7, heads=5),
        Case(sequence(128, block=64), layout_k=grid((16, 40), block=(8, 8))),
        Case(grid((16, 24), block=(16, 4)), layout_k=sequence(576, block=64)),
        Case(wide, dk=32, strides="fused", batch=37, heads=5),
        Case(wide, dk=32, strides="misaligned"),
        Case(grid((64, 64), block=(8, 8)), dk=32, feature_map="elu1", per_head=True),
        Case(grid((16, 16), block=(8, 8)), dk=32, eps=0.5, scale=0.25),
        Case(sequence(1088, block=64), dk=32, normalizer="none", batch=3, heads=5),
        Case(sequence(2112, block=64), layout_k=sequence(192, block=64), dk=32, per_head=True),
        Case(square, dk=96, strides="fused", batch=3, heads=3),
        Case(square, dk=96, batch=67, heads=6),
        Case(square, dk=96, strides="heads_first", normalizer="none", scale=0.125),
        Case(square, dk=96, strides="misaligned"),
        Case(square, dk=96, feature_map="elu1", per_head=True, heads=3),
        Case(square, dk=96, feature_map="identity", normalizer="none"),
        Case(sequence(64, block=64), dk=96),
        Case(sequence(832, block=64), dk=96, batch=7, heads=5, feature_map="relu"),
        Case(grid((16, 24), block=(16, 4)), dk=96, eps=0.5, scale=0.25),
        Case(sequence(128, block=64), layout_k=grid((16, 40), block=(8, 8)), dk=96),
        Case(sequence(256, block=64), layout_k=grid((32, 8), block=(16, 4)), dk=96, heads=3),
    ]


def short_sequences():
    """One sequence of 129 to 256 keys: both halves, ragged ends, odd edges, queries of their own."""
    picture = grid((16, 16), block=(4, 4))
    return [Case(picture, dk=d, heads=3) for d in (32, 64, 72, 96)] + [
        Case(picture, dk=72, batch=40, heads=5, strides="fused"),
        Case(picture, dk=96, batch=40, heads=5, strides="fused"),
        Case(picture, dk=32, batch=40, heads=5, strides="fused", mask="block_causal"),
        Case(grid((14, 14), blocks=(4, 4)), dk=72, strides="fused"),
        Case(grid((14, 14), blocks=(4, 4)), dk=96, mask="block_causal", normalizer="none"),
        Case(sequence(255, block=16), dk=64, dv=40, heads=7, batch=30),
        Case(sequence(129, block=9), dk=24, dv=32, feature_map="elu1"),
        Case(sequence(131, block=50), dk=80, dv=96, feature_map="relu"),
        Case(sequence(300, block=32), layout_k=sequence(200, block=8), dk=72, heads=5, batch=40),
        Case(sequence(50, block=16), layout_k=sequence(256, block=4), dk=96, feature_map="identity"),
    ] + [Case(grid((14, 14), block=(4, 4)), dk=d, dtype=F16, heads=3) for d in (32, 72, 96)]


def shared_rows():
    """shared_position where cuda.dense and cuda.fused have it: short pictures and boxes of 64, ragged
    ones with tokens without partners, tensors that only cuda.linear takes."""
    picture, square = grid((16, 16), block=(4, 4)), grid((32, 32), block=(8, 8))
    cases = [
        Case(picture, heads=3, strides="fused"),
        Case(picture, batch=40, heads=5, dk=72, strides="fused"),
        Case(picture, dk=40, dv=56, scale=0.125, eps=0.5),
        Case(picture, strides="misaligned"),
        Case(picture, batch=37, heads=5, strides="fused"),
        Case(picture, batch=40, heads=5, dtype=F16),
        Case(picture, batch=34, heads=4, feature_map="elu1", mask="block_causal", dk=40, dv=64),
        Case(grid((14, 14), blocks=(4, 4)), batch=33, heads=5, dk=72, feature_map="elu1"),
        Case(grid((14, 14), block=(4, 4)), batch=33, heads=5, feature_map="relu"),
        Case(sequence(200, blocks=3), batch=70, dk=48),
        Case(picture, feature_map="elu1", mask="block_causal"),
        Case(picture, feature_map="relu", dk=72, strides="heads_first"),
        Case(picture, dtype=F16, heads=3),
        Case(grid((14, 14), blocks=(4, 4)), dk=72, feature_map="identity"),
        Case(sequence(255, block=16), dk=64, dv=40, heads=7, batch=30),
        Case(sequence(200, blocks=3), dk=48),
        Case(picture, batch=40, heads=5, dk=96, strides="fused"),
        Case(grid((14, 14), blocks=(4, 4)), dk=80, dv=96, heads=3, dtype=F16),
        Case(square, batch=3, heads=3, strides="fused"),
        Case(square, batch=67, heads=6, strides="fused"),
        Case(square, strides="heads_first", scale=0.125, eps=0.5),
        Case(square, strides="misaligned"),
        Case(square, feature_map="elu1"),
        Case(square, feature_map="identity"),
        Case(sequence(832, block=64), batch=7, heads=5, feature_map="relu"),
        Case(grid((16, 24), block=(16, 4)), heads=3),
        Case(grid((16, 16), block=(8, 8)), dk=32),
        Case(grid((56, 56), block=(8, 8)), dk=32, strides="fused", batch=37, heads=5),
        Case(grid((64, 64), block=(8, 8)), dk=32, heads=3),
        Case(square, dk=96, batch=37, heads=5, strides="fused"),
        Case(square, dk=96, strides="heads_first", scale=0.125, eps=0.5),
        Case(square, dk=96, strides="misaligned"),
        Case(sequence(832, block=64), dk=96, batch=7, heads=5, feature_map="relu"),
    ]
    return [dataclasses.replace(case, normalizer="shared_position") for case in cases]


def tiles():
    """Boxes that the Hopper kernels of cuda.linear cut into slices: several slices a tile and tiles
    without all of them, blocks short at the end of every axis, batch entries behind the last axis,
    and tensors or layouts that the copy engine cannot address."""
    video, picture = grid((14, 12, 10), block=(7, 6, 5)), grid((32, 48), block=(16, 16))
    short_video, short_picture = grid((9, 13, 12), block=(7, 6, 5)), grid((40, 41), block=(16, 16))
    # Blocks of two kinds, some longer by one: along x, y and z.
    uneven = [grid((14, 12, 16), blocks=(2, 2, 3)), grid((14, 13, 10), blocks=(2, 2, 2)),
              grid((15, 12, 10), blocks=(2, 2, 2)), sequence(1000, blocks=7)]
    return [
        Case(video, dk=128, strides="fused", heads=3),
        Case(video, dk=128, batch=13, heads=4, strides="fused"),
        Case(video, dk=64, heads=3, normalizer="none", scale=0.125),
        Case(short_video, dk=128, batch=1, heads=3, strides="fused"),
        Case(short_video, dk=64, batch=1, heads=2, feature_map="elu1"),
        Case(short_video, dk=128),
        Case(picture, dk=64, batch=3, heads=5, strides="fused"),
        Case(picture, dk=128, strides="heads_first", feature_map="relu"),
        Case(picture, dk=128, strides="misaligned"),
        Case(picture, dk=64, mask="block_causal", eps=0.5, scale=0.25),
        Case(short_picture, dk=64, batch=3, heads=3, strides="fused"),
        Case(short_picture, dk=128, batch=2, feature_map="elu1", per_head=True),
        Case(short_picture, dk=128, normalizer="none", feature_map="identity"),
        Case(grid((80, 96), block=(16, 16)), dk=64, batch=19, heads=3),
        Case(grid((20, 33), block=(5, 11)), dk=128, heads=3),  # a slice of 55 rows
        Case(grid((34, 40), block=(17, 20)), dk=64, heads=3),  # three lines of 20 a tile
        Case(sequence(1000, block=64), dk=128, heads=3),
        Case(sequence(700, block=250), dk=64, feature_map="identity"),
        Case(sequence(630, block=210), dk=128, layout_k=picture, heads=3),
        Case(grid((21, 30, 50), blocks=(3, 5, 10)), batch=1, heads=2, dk=128, strides="fused"),
        Case(grid((256, 256), block=(16, 16)), batch=1, heads=1, dk=64, strides="fused"),
        Case(video, dk=128, heads=3, normalizer="shared_position", strides="fused"),
        Case(short_picture, dk=64, batch=3, heads=3, normalizer="shared_position"),
        Case(short_video, dk=128, batch=1, heads=3, normalizer="shared_position", strides="fused"),
        Case(video, dk=64, batch=5, heads=3, normalizer="shared_position", scale=0.25, eps=0.5),
        Case(picture, dk=64, normalizer="shared_position", mask="block_causal", feature_map="elu1"),
        Case(picture, dk=128, normalizer="shared_position", feature_map="identity", per_head=True),
        Case(short_picture, dk=128, batch=2, normalizer="shared_position", feature_map="relu",
             strides="misaligned"),
        Case(sequence(1000, block=64), dk=128, heads=3, normalizer="shared_position"),
        Case(sequence(19200, block=64), dk=64, batch=1, normalizer="shared_position"),  # 300 blocks
        Case(grid((21, 30, 50), blocks=(3, 5, 10)), batch=1, heads=2, dk=128, strides="fused",
             normalizer="shared_position"),
        Case(grid((256, 256), block=(16, 16)), batch=1, heads=1, dk=64, strides="fused",
             normalizer="shared_position"),
        Case(short_video, dk=128, batch=1, feature_map="identity", separate=True),
        Case(picture, dk=64, feature_map="identity", separate=True, normalizer="shared_position"),
    ] + [
        Case(layout, dk=d, batch=3, heads=3, strides="fused", normalizer=normalizer)
        for layout, d in zip(uneven, (128, 64, 128, 64))
        for normalizer in ("exact", "shared_position", "none")
    ] + [
        Case(grid((21, 30, 52), blocks=(3, 5, 10)), batch=1, heads=2, dk=128, strides="fused",
             normalizer="shared_position"),
        Case(uneven[0], dk=32, batch=3, heads=4, normalizer="shared_position"),
        Case(uneven[1], dk=32, batch=3, heads=4),
    ] + [  # two heads of 32 columns a tile
        Case(short_picture, dk=32, batch=3, heads=4, normalizer="shared_position"),
        Case(short_video, dk=32, batch=1, heads=6, normalizer="shared_position", strides="fused"),
        Case(grid((64, 64), block=(8, 8)), dk=32, batch=5, heads=6, normalizer="shared_position",
             strides="fused", feature_map="elu1"),
        Case(grid((56, 56), block=(8, 8)), dk=32, batch=37, heads=4, strides="fused"),
        Case(short_video, dk=32, batch=1, heads=6, strides="fused"),
        Case(short_picture, dk=32, batch=3, heads=4, feature_map="elu1"),
        Case(picture, dk=32, heads=2, strides="heads_first"),
        Case(picture, dk=32, heads=6, per_head=True, eps=0.5, scale=0.25),
        Case(picture, dk=32, heads=4, layout_k=sequence(1000, block=64), feature_map="relu"),
        Case(sequence(1000, block=64), dk=32, normalizer="none", feature_map="identity"),
        Case(sequence(1000, block=50), dk=32, mask="block_causal", heads=4),
    ]


def slabs():
    """97 to 256 blocks: mixing products whose weights stay in shared memory."""
    return [
        Case(sequence(485, block=5), dk=32, heads=3, batch=3),  # 97
        Case(sequence(1000, block=4), dk=64, heads=3),
        Case(sequence(1024, block=4), dk=72, mask="block_causal"),
        Case(sequence(400, block=4), layout_k=sequence(300, block=2), dk=32),
        Case(sequence(322, block=2), layout_k=sequence(480, block=4), dk=32, normalizer="none"),
    ]


def causal():
    """Causal without a normaliser in blocks of whole tiles (cuda.causal, cuda.columns): ragged ends, an odd number
    of row tiles, blocks of several tiles, widths below the compiled ones, several groups of heads in
    the backward, more work than thread blocks, groups of blocks, tensors that the copy engine cannot
    address."""
    line = functools.partial(Case, mask="causal", normalizer="none", feature_map="relu")
    wide = functools.partial(line, dk=128, dv=256, scale=128**-0.5)
    return [
        wide(sequence(50, block=64)),
        wide(sequence(64, block=64)),
        wide(sequence(100, block=64), feature_map="identity"),
        wide(sequence(321, block=64), feature_map="elu1", heads=3),
        wide(sequence(700, block=64), batch=7, heads=5, feature_map="relu_eps"),
        wide(sequence(2048, block=64), batch=3, heads=4),
        wide(sequence(640, block=64), strides="misaligned"),
        wide(sequence(640, block=64), strides="heads_first"),
        wide(sequence(640, block=64), per_head=True, heads=3),
        wide(sequence(2500, block=64), batch=1),
        wide(sequence(1300, block=64), feature_map="elu1", heads=3),
        wide(sequence(1830, block=64), feature_map="elu1", heads=3),  # two groups, odd ends
        wide(sequence(2047, block=64), per_head=True, heads=3, feature_map="identity"),
        wide(sequence(1857, block=64), batch=13, heads=10, strides="heads_first"),
        line(sequence(1900, block=64), dk=104, dv=200, feature_map="relu_eps", scale=0.1),
        line(sequence(1000, block=128), dk=128, dv=192, scale=0.125),
        line(sequence(900, block=256), dk=128, feature_map="elu1", scale=0.1),
        line(sequence(300, block=512), dk=128, feature_map="identity", scale=0.1),
        line(sequence(333, block=64), dk=96, dv=200, feature_map="relu_eps", scale=0.1),
        line(sequence(1000, block=64), strides="fused", scale=0.125, batch=5),
        line(sequence(500, block=64), dk=40, dv=56, feature_map="elu1", scale=0.125),
    ]


def unique(cases):
    return list(dict.fromkeys(cases))


def small(case):
    """What the scalar reference finishes in well under a second."""
    pairs = case.batch * case.heads * case.dk * case.width * len(case.keys.boxes)
    return pairs * (case.layout.tokens + len(case.layout.boxes) ** 2) < 2**28


ALL = unique(tile_edges() + widths() + layouts() + forms() + precisions() + memory() + batches() +
             whole_heads() + boxes() + short_sequences() + shared_rows() + tiles() + slabs() +
             causal())
REPEATED = [
    Case(grid((14, 14), block=(4, 4)), heads=3),
    Case(sequence(200, block=64), mask="causal", normalizer="none", dk=128),
    Case(grid((16, 16), block=(4, 4)), batch=16, heads=6, normalizer="shared_position"),
    Case(grid((32, 32), block=(8, 8)), batch=16, heads=6),
    Case(grid((32, 32), block=(8, 8)), batch=64, heads=6, normalizer="shared_position"),
    Case(grid((16, 16), block=(4, 4)), batch=64, heads=16, dk=72, strides="fused",
         normalizer="shared_position"),
    Case(grid((56, 56), block=(8, 8)), batch=16, heads=6, dk=32),
    Case(grid((9, 13, 12), block=(7, 6, 5)), batch=1, heads=3, dk=128, strides="fused"),
    Case(grid((80, 96), block=(16, 16)), batch=19, heads=3, dk=64),
    Case(grid((14, 12, 10), block=(7, 6, 5)), batch=40, heads=4, dk=128, strides="fused"),
    Case(grid((80, 96), block=(16, 16)), batch=19, heads=3, dk=64, normalizer="shared_position"),
    Case(grid((14, 12, 10), block=(7, 6, 5)), batch=40, heads=4, dk=128, strides="fused",
         normalizer="shared_position"),
    Case(sequence(1000, block=64), batch=5, heads=4, dk=128, dv=256, mask="causal",
         normalizer="none", feature_map="relu"),
    Case(sequence(2048, block=64), batch=9, heads=4, dk=128, dv=256, mask="causal",
         normalizer="none", feature_map="relu"),
    # Many heads a thread block: buffers that are freed too early show here, and hardly elsewhere.
    Case(grid((16, 16), block=(4, 4)), batch=64, heads=16, dk=72, strides="fused"),
    Case(grid((16, 16), block=(4, 4)), batch=64, heads=16, dk=96, strides="fused"),
]
if not torch.cuda.is_available():
    ALL = [case for case in ALL if small(case)]
    REPEATED = REPEATED[:2]
