"""The networks that no package has, written from spec.md as functions of a state dict: slow, plain
PyTorch, nothing of mhla. Attention is the dense oracle of spec 1.2 and 1.7."""

import math

import torch
import torch.nn.functional as F


class Weights:
    """`w["blocks.0.attn"]` is what hangs below that name; `w.weight` a tensor."""

    def __init__(self, state, prefix=""):
        self.state, self.prefix = state, prefix

    def __getitem__(self, name):
        return Weights(self.state, f"{self.prefix}{name}.")

    def get(self, name):
        return self.state[self.prefix + name]

    def has(self, name):
        return any(key.startswith(self.prefix + name) for key in self.state)

    def linear(self, name, x):
        bias = self.state.get(f"{self.prefix}{name}.bias")
        weight = self.get(f"{name}.weight")
        return F.linear(x, weight.flatten(1), bias)  # a 1x1 convolution is one too

    def norm(self, name, x, eps=1e-6):
        return F.layer_norm(x, x.shape[-1:], self.get(f"{name}.weight"), self.get(f"{name}.bias"), eps)

    def depthwise(self, name, x, grid):
        """x `[B, N, C]` on the grid"""
        weight, bias = self.get(f"{name}.weight"), self.get(f"{name}.bias")
        picture = x.transpose(1, 2).unflatten(2, grid)
        convolve = F.conv2d if len(grid) == 2 else F.conv3d
        y = convolve(picture, weight, bias, padding=weight.shape[-1] // 2, groups=len(weight))
        return y.flatten(2).transpose(1, 2)

    def conv(self, name, x, **options):
        return F.conv2d(x, self.get(f"{name}.weight"), self.get(f"{name}.bias"), **options)

    def batch_norm(self, name, x):
        w = self[name]
        return F.batch_norm(x, w.get("running_mean"), w.get("running_var"), w.get("weight"), w.get("bias"))


def rms(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def cut(grid, blocks):
    """Block and position inside it of every token; axis of G tokens cut at floor(i G / n)."""
    index = torch.zeros(*grid, dtype=torch.long)
    place = torch.zeros(*grid, dtype=torch.long)
    axes = []
    for extent, n in zip(grid, blocks):
        edges = [i * extent // n for i in range(n + 1)]
        of = [max(i for i in range(n) if edges[i] <= t) for t in range(extent)]
        axes.append((of, [t - edges[b] for t, b in zip(range(extent), of)]))
    widest = [max(w) + 1 for _, w in axes]
    for token in torch.cartesian_prod(*[torch.arange(g) for g in grid]).reshape(-1, len(grid)).tolist():
        b = p = 0
        for (of, inside), n, wide, t in zip(axes, blocks, widest, token):
            b, p = b * n + of[t], p * wide + inside[t]
        index[tuple(token)], place[tuple(token)] = b, p
    return index.flatten(), place.flatten()


def dense_mhla(q, k, v, m, block, place, normalizer, q_den=None, k_den=None):
    """q, k (features applied), v `[B, N, H, d]`"""
    weight = m[block][:, block]
    scores = torch.einsum("bshd,bthd->bhst", q, k) * weight
    o = torch.einsum("bhst,bthe->bshe", scores, v)
    qd, kd = (q if q_den is None else q_den), (k if k_den is None else k_den)
    if normalizer == "exact":
        below = torch.einsum("bshd,bthd,st->bsh", qd, kd, weight)
    elif normalizer == "shared_position":
        own = (block[:, None] == block[None]).to(q.dtype)  # each token with the keys of its block
        r = torch.einsum("bshd,bthd,st->bsh", qd, kd, own)
        same = (place[:, None] == place[None]).to(q.dtype)
        below = torch.einsum("st,bth->bsh", weight * same, r) + 1e-6
    else:
        return o
    return o / below.unsqueeze(-1)


def heads(x, n):
    return x.unflatten(-1, (n, -1))


def relu_eps(x):
    return F.relu(x) + 1e-6


def picture_mhla(w, x, n, grid, blocks, normalizer="shared_position"):
    """The authors' layer in DeiT and DiT (spec 1.9, columns 1 and 2)."""
    if w.has("norm"):
        x = w.norm("norm", x, 1e-5)
    q, k, v = w.linear("to_qkv", x).chunk(3, -1)
    if w.has("q_norm"):
        eps = torch.finfo(x.dtype).eps
        q, k = rms(q, w.get("q_norm.weight"), eps), rms(k, w.get("k_norm.weight"), eps)
    m = w.get("piece_attn.conv.weight")[:, :, 0, 0]
    o = dense_mhla(relu_eps(heads(q, n)), relu_eps(heads(k, n)), heads(v, n), m, *cut(grid, blocks), normalizer)
    o = o.flatten(2)
    if w.has("lepe"):
        o = o + w.depthwise("lepe", v, grid)
    if w.has("to_gate"):
        o = o * F.silu(w.linear("to_gate", x))
    return w.linear("to_out.0", o)


def deit(state, x, n, padding, blocks=(4, 4)):
    w = Weights(state)
    x = F.pad(x, [padding] * 4)
    patch = w.get("patch_embed.proj.weight").shape[-1]
    picture = w.conv("patch_embed.proj", x, stride=patch)
    grid = tuple(picture.shape[2:])
    x = picture.flatten(2).transpose(1, 2) + w.get("pos_embed")
    i = 0
    while w.has(f"blocks.{i}."):
        b = w[f"blocks.{i}"]
        x = x + picture_mhla(b["attn"], b.norm("norm1", x), n, grid, blocks)
        x = x + b.linear("mlp.fc2", F.gelu(b.linear("mlp.fc1", b.norm("norm2", x))))
        i += 1
    return w.linear("head", w.norm("fc_norm", x.mean(1)))


def waves(t, width=256, dtype=torch.float32):
    half = width // 2
    angles = t.to(dtype)[:, None] * torch.exp(-math.log(10000) * torch.arange(half, dtype=dtype) / half)
    return torch.cat([angles.cos(), angles.sin()], 1).float()


def plain_norm(x):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


def dit(state, x, t, y, n, blocks=(4, 4), mixer=None, quad=False):
    """DiT with MHLA, and DiG with another mixer."""
    w = Weights(state)
    patch = w.get("x_embedder.proj.weight").shape[-1]
    picture = w.conv("x_embedder.proj", x, stride=patch)
    grid = tuple(picture.shape[2:])
    x = picture.flatten(2).transpose(1, 2) + w.get("pos_embed")
    c = w.linear("t_embedder.mlp.2", F.silu(w.linear("t_embedder.mlp.0", waves(t))))
    c = c + w.get("y_embedder.embedding_table.weight")[y]
    i = 0
    while w.has(f"blocks.{i}."):
        b = w[f"blocks.{i}"]
        m = [each[:, None] for each in b.linear("adaLN_modulation.1", F.silu(c)).chunk(6, -1)]
        h = plain_norm(x) * (1 + m[1]) + m[0]
        x = x + m[2] * (mixer(b["attn"], h, n) if mixer else picture_mhla(b["attn"], h, n, grid, blocks))
        h = plain_norm(x) * (1 + m[4]) + m[3]
        if b.has("mlp.down_proj"):
            gate, up = b.linear("mlp.gate_proj", h).chunk(2, -1)
            x = x + m[5] * b.linear("mlp.down_proj", F.silu(gate) * up)
        else:
            x = x + m[5] * b.linear("mlp.fc2", F.gelu(b.linear("mlp.fc1", h), approximate="tanh"))
        if b.has("dw_conv"):
            x = b.depthwise("dw_conv", x, grid)
        if quad:
            x = x.flip(1)
            if i % 2 == 1:
                x, grid = x.unflatten(1, grid).transpose(1, 2).flatten(1, 2), grid[::-1]
        i += 1
    shift, scale = w.linear("final_layer.adaLN_modulation.1", F.silu(c))[:, None].chunk(2, -1)
    x = w.linear("final_layer.linear", plain_norm(x) * (1 + scale) + shift)
    x = x.unflatten(1, grid).unflatten(-1, (patch, patch, -1))
    x = torch.einsum("bhwpqc->bchpwq", x)
    return x.flatten(4, 5).flatten(2, 3)


def gla_recurrence(w, x, n):
    """GLA token by token (spec 4)."""
    q, k, v, g = (heads(w.linear(f"{name}_proj", x), n) for name in "qkvg")
    alpha = heads(F.linear(w.linear("gk_proj.0", x), w.get("gk_proj.1.weight"), w.get("gk_proj.1.bias")), n)
    alpha = torch.exp(F.logsigmoid(alpha) / 16)
    state = torch.zeros(x.shape[0], n, q.shape[-1], v.shape[-1], dtype=x.dtype)
    out = []
    for t in range(x.shape[1]):
        state = alpha[:, t, :, :, None] * state + k[:, t, :, :, None] * v[:, t, :, None, :]
        out.append(torch.einsum("bhd,bhde->bhe", q[:, t] * q.shape[-1] ** -0.5, state))
    o = rms(torch.stack(out, 1), w.get("g_norm_swish_gate.weight"), 1e-6) * F.silu(g)
    return w.linear("o_proj", o.flatten(2))


def rotated(x, angles):
    """Neighbouring channels turn together; angles `[N, d/2]`."""
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]
    a, b = x.double()[..., 0::2], x.double()[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)


def vlt_angles(grid, d):
    theta = 10000.0 ** -torch.linspace(0, 1, d // 4, dtype=torch.float64)
    rows = torch.arange(grid[0], dtype=torch.float64)[:, None, None] * theta
    columns = torch.arange(grid[1], dtype=torch.float64)[None, :, None] * theta
    both = [rows.expand(*grid, -1), columns.expand(*grid, -1)]
    return torch.cat(both, -1).flatten(0, 1)


def vlt_attention(w, x, n, grid, blocks):
    """MHLA in the linear stages, softmax in the others."""
    q, k, v, gate = w.linear("qkvo", x).chunk(4, -1)
    q, k, values = heads(q, n), heads(k, n), heads(v, n)
    angles = vlt_angles(grid, q.shape[-1])
    if w.has("piece_attn"):
        q, k = relu_eps(q), relu_eps(k)
        m = w.get("piece_attn.conv.weight")[:, :, 0, 0]
        o = dense_mhla(rotated(q, angles), rotated(k, angles), values, m, *cut(grid, blocks), "exact", q, k)
    else:
        q, k = rotated(q, angles), rotated(k, angles)
        scores = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
        o = torch.einsum("bhst,bthe->bshe", scores.softmax(-1), values)
    o = (o.flatten(2) + w.depthwise("lepe", v, grid)) * gate
    return w.linear("proj", o)


def vlt(state, x, stage_heads, stage_blocks):
    w = Weights(state)
    stem = w["patch_embed.proj"]
    for i, stride in ((0, 2), (3, 1), (6, 1), (9, 2)):
        x = stem.batch_norm(str(i + 1), stem.conv(str(i), x, stride=stride, padding=1))
        if i < 9:
            x = F.gelu(x)
    for s, n in enumerate(stage_heads):
        layer, i = w[f"layers.{s}"], 0
        while layer.has(f"blocks.{i}."):
            b, grid = layer[f"blocks.{i}"], tuple(x.shape[2:])
            tokens = x.flatten(2).transpose(1, 2)
            tokens = tokens + b.depthwise("pos", tokens, grid)
            y = vlt_attention(b["attn"], b.norm("norm1.norm", tokens), n, grid, stage_blocks[s])
            tokens = tokens + b.get("gamma_1").flatten() * y
            h = F.gelu(b.linear("ffn.fc1", b.norm("norm2.norm", tokens)))
            h = h + b.depthwise("ffn.dwconv", h, grid)
            tokens = tokens + b.get("gamma_2").flatten() * b.linear("ffn.fc2", h)
            x = tokens.transpose(1, 2).unflatten(2, grid)
            i += 1
        if layer.has("downsample"):
            x = layer.batch_norm("downsample.norm", layer.conv("downsample.reduction", x, stride=2, padding=1))
    x = F.silu(w.batch_norm("norm", w.conv("proj", x)))
    return w.conv("head", x.mean((2, 3), keepdim=True)).flatten(1)


def language(state, ids, n, block):
    """The 340 M model with MHLA (spec 1.7, 1.9, 2.7)."""
    w = Weights(state)
    x = w.get("model.embeddings.weight")[ids]
    tokens = ids.shape[1]
    chunk = torch.arange(tokens) // block
    i = 0
    while w.has(f"model.layers.{i}."):
        b = w[f"model.layers.{i}"]
        h, a = rms(x, b.get("attn_norm.weight"), 1e-6), b["attn"]
        q, k, v, g = (heads(a.linear(f"{name}_proj", h), n) for name in "qkvg")
        q, k = F.relu(q), F.relu(k)
        half = q.shape[-1] // 2
        angles = torch.arange(tokens, dtype=torch.float64)[:, None] * 10000.0 ** (
            -torch.arange(half, dtype=torch.float64) / half
        )
        cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]

        def turn(t):
            lo, hi = t.double()[..., :half], t.double()[..., half:]
            return torch.cat([lo * cos - hi * sin, hi * cos + lo * sin], -1).to(t.dtype)

        m = a.get("mixing_matrix").flatten(1).clamp(1e-5, 1)
        scores = torch.einsum("bshd,bthd->bhst", turn(q), turn(k)) * q.shape[-1] ** -0.5
        scores = (scores * m[chunk][:, chunk]).tril()
        o = torch.einsum("bhst,bthe->bshe", scores, v)
        o = rms(o, a.get("g_norm_swish_gate.weight"), 1e-6) * F.silu(g)
        x = x + a.linear("o_proj", o.flatten(2))
        h = rms(x, b.get("mlp_norm.weight"), 1e-6)
        x = x + b.linear("mlp.down_proj", F.silu(b.linear("mlp.gate_proj", h)) * b.linear("mlp.up_proj", h))
        i += 1
    x = rms(x, w.get("model.norm.weight"), 1e-6)
    return x @ w.get("model.embeddings.weight").T


def wan_angles(grid, d):
    """Pairs of a head: frame, row, column; the first gets what is left over."""
    pairs = d // 2
    share = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    parts = []
    for axis, own in enumerate(share):
        theta = 10000.0 ** (-torch.arange(own, dtype=torch.float64) / own)
        shape = [1, 1, 1, own]
        shape[axis] = grid[axis]
        positions = torch.arange(grid[axis], dtype=torch.float64)[:, None] * theta
        parts.append(positions.reshape(shape).expand(*grid, own))
    return torch.cat(parts, -1).flatten(0, 2)


def wan_mhla(w, x, n, grid, blocks):
    """`mhla_uni` (spec 1.9, column 3)."""
    q, k = (rms(w.linear(name, x), w.get(f"norm_{name}.weight"), 1e-6) for name in "qk")
    v = w.linear("v", x)
    angles = wan_angles(grid, q.shape[-1] // n)
    q, k = (rotated(relu_eps(heads(t, n)), angles) for t in (q, k))
    m = w.get("block_attn.conv.weight")[:, :, 0, 0]
    o = dense_mhla(q, k, heads(v, n), m, *cut(grid, blocks), "none")
    if w.has("lepe"):
        o = o + heads(w.depthwise("lepe", v, grid), n)
    full = w.has("g_norm") and w.get("g_norm.weight").numel() == x.shape[-1]
    if w.has("g_norm") and not full:
        o = rms(o, w.get("g_norm.weight"), 1e-6)
    o = o.flatten(2)
    if full:
        o = rms(o, w.get("g_norm.weight"), 1e-6)
    if w.has("g.weight"):
        o = o * F.silu(w.linear("g", x))
    o = w.linear("o", o)
    return rms(o, w.get("out_rmsnorm.weight"), 1e-6) if w.has("out_rmsnorm") else o


def softmax(q, k, v, mask=None):
    """`[B, N, H, d]`; mask `[B, L]`"""
    scores = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask.bool()[:, None, None], float("-inf"))
    return torch.einsum("bhst,bthe->bshe", scores.softmax(-1), v).flatten(2)


def wan(state, x, t, text, n, blocks, text_length):
    w = Weights(state)
    video = F.conv3d(x, w.get("patch_embedding.weight"), w.get("patch_embedding.bias"), stride=(1, 2, 2))
    grid, channels = tuple(video.shape[2:]), x.shape[1]
    x = video.flatten(2).transpose(1, 2)
    e = w.linear("time_embedding.2", F.silu(w.linear("time_embedding.0", waves(t, dtype=torch.float64))))
    e0 = w.linear("time_projection.1", F.silu(e)).unflatten(1, (6, -1))
    text = F.pad(text, (0, 0, 0, text_length - text.shape[1]))
    text = w.linear("text_embedding.2", F.gelu(w.linear("text_embedding.0", text), approximate="tanh"))
    i = 0
    while w.has(f"blocks.{i}."):
        b = w[f"blocks.{i}"]
        m = (b.get("modulation") + e0).split(1, 1)
        h, a, c = plain_norm(x) * (1 + m[1]) + m[0], b["self_attn"], b["cross_attn"]
        if a.has("block_attn"):
            x = x + m[2] * wan_mhla(a, h, n, grid, blocks)
        else:
            q, k = (rms(a.linear(name, h), a.get(f"norm_{name}.weight"), 1e-6) for name in "qk")
            angles = wan_angles(grid, q.shape[-1] // n)
            q, k = (rotated(heads(each, n), angles) for each in (q, k))
            x = x + m[2] * a.linear("o", softmax(q, k, heads(a.linear("v", h), n)))
        h = b.norm("norm3", x)
        q = rms(c.linear("q", h), c.get("norm_q.weight"), 1e-6)
        k = rms(c.linear("k", text), c.get("norm_k.weight"), 1e-6)
        x = x + c.linear("o", softmax(heads(q, n), heads(k, n), heads(c.linear("v", text), n)))
        h = plain_norm(x) * (1 + m[4]) + m[3]
        x = x + m[5] * b.linear("ffn.2", F.gelu(b.linear("ffn.0", h), approximate="tanh"))
        i += 1
    shift, scale = (w.get("head.modulation") + e[:, None]).split(1, 1)
    x = w.linear("head.head", plain_norm(x) * (1 + scale) + shift)
    x = x.unflatten(1, grid).unflatten(-1, (2, 2, channels))
    return torch.einsum("bfhwqrc->bcfhqwr", x).flatten(5, 6).flatten(3, 4)


def sana(state, x, t, text, mask, n, cross, blocks):
    """With the operator alone, paper's normaliser, in the place of the linear attention."""
    w = Weights(state)
    picture = w.conv("x_embedder.proj", x)
    grid = tuple(picture.shape[2:])
    x = picture.flatten(2).transpose(1, 2)
    when = w.linear("t_embedder.mlp.2", F.silu(w.linear("t_embedder.mlp.0", waves(t))))
    steer = w.linear("t_block.1", F.silu(when)).unflatten(1, (6, -1))
    y = w["y_embedder.y_proj"]
    text = y.linear("fc2", F.gelu(y.linear("fc1", text), approximate="tanh"))
    text = rms(text, w.get("attention_y_norm.weight"), 1e-5)
    i = 0
    while w.has(f"blocks.{i}."):
        b = w[f"blocks.{i}"]
        m = (b.get("scale_shift_table") + steer).split(1, 1)
        h, a, c = plain_norm(x) * (1 + m[1]) + m[0], b["attn"], b["cross_attn"]
        q, k, v = (heads(each, n) for each in a.linear("qkv", h).chunk(3, -1))
        mixing = a.get("piece_attn.conv.weight")[:, :, 0, 0]
        o = dense_mhla(relu_eps(q), relu_eps(k), v, mixing, *cut(grid, blocks), "exact")
        x = x + m[2] * a.linear("proj", o.flatten(2))
        k, v = (heads(each, cross) for each in c.linear("kv_linear", text).chunk(2, -1))
        x = x + c.linear("proj", softmax(heads(c.linear("q_linear", x), cross), k, v, mask))
        h = plain_norm(x) * (1 + m[4]) + m[3]
        h = b.depthwise("mlp.depth_conv.conv", F.silu(b.linear("mlp.inverted_conv.conv", h)), grid)
        up, gate = h.chunk(2, -1)
        x = x + m[5] * b.linear("mlp.point_conv.conv", up * F.silu(gate))
        i += 1
    shift, scale = (w.get("final_layer.scale_shift_table") + when[:, None]).split(1, 1)
    x = w.linear("final_layer.linear", plain_norm(x) * (1 + scale) + shift)
    return x.transpose(1, 2).unflatten(2, grid)
