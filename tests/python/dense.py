"""The operator as plain PyTorch on dense matrices: what every other form is compared with."""

import torch


def blocks_of(grid, block):
    """Block number and raster position inside the block of every token: two tensors [N]."""
    axes = torch.meshgrid(*[torch.arange(g) for g in grid], indexing="ij")
    counts = [-(-g // b) for g, b in zip(grid, block)]
    index = torch.zeros(grid, dtype=torch.long)
    place = torch.zeros(grid, dtype=torch.long)
    for axis, extent, count in zip(axes, block, counts):
        index = index * count + axis // extent
        place = place * extent + axis % extent
    return index.flatten(), place.flatten()


def phi(x, feature_map):
    return {
        "relu_eps": lambda: torch.relu(x) + 1e-6,
        "relu": lambda: torch.relu(x),
        "elu1": lambda: torch.nn.functional.elu(x) + 1,
        "identity": lambda: x,
    }[feature_map]()


def attention(q, k, v, mixing, grid, block, *, mask="none", normalizer="exact", feature_map="relu_eps",
              scale=1.0, eps=None, q_den=None, k_den=None):  # fmt: skip
    """A_st = m[b(s), b(t)] * scale * phi(q_s).phi(k_t), o = A v, divided as the normaliser says."""
    index, place = (t.to(q.device) for t in blocks_of(grid, block))
    weights = mixing[..., index, :][..., index] * scale  # [N, N] or [H, N, N]
    later, same = index[:, None] > index[None], index[:, None] == index[None]
    if mask == "causal":
        weights = weights * (later | (same & (place[:, None] >= place[None])))
    if mask == "block_causal":
        weights = weights * (later | same)
    scores = weights * torch.einsum("bshd,bthd->bhst", phi(q, feature_map), phi(k, feature_map))
    numerator = torch.einsum("bhst,bthe->bshe", scores, v)
    if normalizer == "none":
        return numerator
    qd, kd = (q if q_den is None else q_den), (k if k_den is None else k_den)
    own = torch.einsum("bshd,bthd->bhst", phi(qd, feature_map), phi(kd, feature_map))
    if normalizer == "exact":
        denominator = (weights * own).sum(-1) + (eps or 0.0)
    else:
        # spec 1.3: each block's own query at the same place meets that block's own keys, then mixed
        per_token = (own * same).sum(-1)  # [B, H, N]
        paired = weights * (place[:, None] == place[None])
        denominator = torch.einsum("...st,bht->bhs", paired, per_token) + (1e-6 if eps is None else eps)
    return numerator / denominator.transpose(1, 2).unsqueeze(-1)
