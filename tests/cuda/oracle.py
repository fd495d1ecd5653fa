"""What the operator must compute, in two forms that share no factorisation.

`dense` is the definition (scores weighted by the mixing matrix, nothing factored). `blockwise` is
the linear form as a user composes it from PyTorch operations: in f64 it is the oracle of large
shapes, in the dtype of a case it is the naive computation whose error bounds ours.
Numerator and denominator read separate leaves, so that a gradient's two parts are known apart:
where they cancel (one block: d_mixing is zero), the size of the parts says what rounding may leave.
A weight that all heads share gets a sum over the heads, which is small by chance now and then; its
parts are therefore known head by head, and their size is the root of the sum of their squares.
"""

import functools

import torch

LEAVES = ("q", "k", "v", "mixing", "q_den", "k_den", "mixing_den")


def feature_map(name, x):
    if name == "relu_eps":
        return torch.relu(x) + 1e-6
    if name == "relu":
        return torch.relu(x)
    if name == "elu1":
        return torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))
    if name == "identity":
        return x
    raise ValueError(name)


def divide(num, den):
    """A row whose denominator is zero is zero, and passes no gradient."""
    zero = den == 0
    return torch.where(zero, 0, num / torch.where(zero, 1, den))


def block_weights(case, mixing, strict):
    """[H or 1, blocks of q, blocks of k]: the mixing weight of a block pair, 0 where unseen."""
    lq, lk = case.layout, case.keys
    device = mixing.device
    rows, cols = lq.index.to(device), lk.index.to(device)
    seen = lq.sequence.to(device)[:, None] == lk.sequence.to(device)[None, :]
    if case.mask != "none":
        seen &= rows[:, None] > cols if strict else rows[:, None] >= cols
    weights = mixing if mixing.dim() == 3 else mixing[None]
    return torch.where(seen, weights[:, rows[:, None], cols[None, :]], 0)


def dense(case, t):
    """t: the seven leaves, f64, [B, N, H, D]. Returns o [B, Nq, H, dv]."""
    device = t["q"].device
    (bq, wq), (bk, wk) = case.layout.places, case.keys.places
    bq, wq, bk, wk = (x.to(device) for x in (bq, wq, bk, wk))
    allowed = torch.ones(len(bq), len(bk), dtype=torch.bool, device=device)
    if case.mask == "causal":
        allowed = (bq[:, None] != bk[None, :]) | (wk[None, :] <= wq[:, None])

    def scores(q, k, mixing):
        weights = block_weights(case, mixing, strict=False)[:, bq[:, None], bk[None, :]]
        q, k = feature_map(case.feature_map, q), feature_map(case.feature_map, k)
        return torch.einsum("bshd,bthd->bhst", q, k) * (weights * allowed) * case.scale

    num = torch.einsum("bhst,bthe->bhse", scores(t["q"], t["k"], t["mixing"]), t["v"])
    if case.normalizer == "none":
        return num.transpose(1, 2)
    if case.normalizer == "exact":
        den = scores(t["q_den"], t["k_den"], t["mixing_den"]).sum(-1)
    else:
        q = feature_map(case.feature_map, t["q_den"])
        k = feature_map(case.feature_map, t["k_den"])
        own = torch.einsum("bshd,bthd->bhst", q, k) * (bq[:, None] == bk[None, :])
        full = own.sum(-1)  # q . z of the token's own block
        weights = block_weights(case, t["mixing_den"], strict=case.mask == "causal")
        pairs = weights[:, bq[:, None], bq[None, :]] * (wq[:, None] == wq[None, :])
        den = (pairs * full[:, :, None, :]).sum(-1) * case.scale
        if case.mask == "causal":
            diagonal = block_weights(case, t["mixing_den"], strict=False)[:, bq, bq]
            den = den + diagonal * (own * allowed).sum(-1) * case.scale
    return divide(num, (den + case.denominator_eps)[..., None]).transpose(1, 2)


def gather(layout, x):
    """[B, N, H, D] -> [B, H, blocks, slots, D], zero where a block has no such slot."""
    table = layout.table.to(x.device)
    x = x[:, table.clamp(min=0)] * (table >= 0)[None, :, :, None, None].to(x.dtype)
    return x.permute(0, 3, 1, 2, 4)


def scatter(layout, x):
    """The inverse of gather."""
    block, slot = (place.to(x.device) for place in layout.places)
    return x[:, :, block, slot].transpose(1, 2)


def round_tf32(x):
    """f32 to the nearest number of 11 significant bits."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


class Tf32Product(torch.autograd.Function):
    """A product of f32 matrices as a tensor core takes it: operands rounded, sums in f32. Spelled
    out because PyTorch's own use of TF32 depends on shapes."""

    @staticmethod
    def forward(ctx, a, b):
        a, b = round_tf32(a), round_tf32(b)
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        gradient = round_tf32(gradient)
        return ((gradient @ b.mT).sum_to_size(a.shape), (a.mT @ gradient).sum_to_size(b.shape))


def blockwise(case, t, multiply=torch.matmul):
    """t: the seven leaves in one dtype. Summaries, mixing, read-out, division."""
    dtype = t["q"].dtype
    present = (case.layout.table >= 0).to(t["q"].device)
    present_k = (case.keys.table >= 0).to(t["q"].device)

    def features(layout, x, mask):
        return feature_map(case.feature_map, gather(layout, x)) * mask[:, :, None].to(dtype)

    def mix(weights, x):
        mixed = multiply(weights.to(dtype), x.flatten(3))
        return mixed.view(*x.shape[:2], -1, *x.shape[3:])

    q = features(case.layout, t["q"], present) * case.scale
    k, v = features(case.keys, t["k"], present_k), gather(case.keys, t["v"])
    causal = case.mask == "causal"
    num = multiply(q, mix(block_weights(case, t["mixing"], strict=causal), multiply(k.mT, v)))
    if causal:
        diagonal = block_weights(case, t["mixing"], False).diagonal(dim1=1, dim2=2).to(dtype)
        num = num + diagonal[:, :, None, None] * multiply(torch.tril(multiply(q, k.mT)), v)
    if case.normalizer == "none":
        return scatter(case.layout, num)

    q = features(case.layout, t["q_den"], present) * case.scale
    k = features(case.keys, t["k_den"], present_k)
    weights = block_weights(case, t["mixing_den"], strict=causal)
    if case.normalizer == "exact":
        den = multiply(q, mix(weights, k.sum(3))[..., None])
    else:
        den = mix(weights, multiply(q, k.sum(3)[..., None]))
    if causal:
        diagonal = block_weights(case, t["mixing_den"], False).diagonal(dim1=1, dim2=2).to(dtype)
        den = den + diagonal[:, :, None, None] * (q * k.cumsum(3)).sum(-1, keepdim=True)
    return scatter(case.layout, divide(num, den + case.denominator_eps))


def run(form, case, inputs, dtype, by_head=False):
    """o, gradients and, per gradient, its numerator and denominator parts, all from one form.

    by_head: the parts of d_mixing are not summed over the heads of a shared matrix.
    """
    source = dict(inputs)
    shared = by_head and inputs["mixing"].dim() == 2
    if shared:
        source["mixing"] = inputs["mixing"].expand(case.heads, -1, -1)
    if not case.separate:
        source.update(q_den=inputs["q"], k_den=inputs["k"])
    source["mixing_den"] = source["mixing"]
    leaves = {n: source[n].detach().to(dtype).requires_grad_() for n in LEAVES}
    o = form(case, leaves)
    grads = torch.autograd.grad(o, [leaves[n] for n in LEAVES], inputs["d_o"].to(dtype),
                                allow_unused=True, materialize_grads=True)
    grad = dict(zip(LEAVES, grads))
    parts = {"o": [o.detach()], "d_v": [grad["v"]],
             "d_mixing": [grad["mixing"], grad["mixing_den"]]}
    for name in ("q", "k"):
        if case.separate:
            parts["d_" + name] = [grad[name]]
            parts[f"d_{name}_den"] = [grad[name + "_den"]]
        else:
            parts["d_" + name] = [grad[name], grad[name + "_den"]]
    totals = {name: sum(part) for name, part in parts.items()}
    if shared:
        totals["d_mixing"] = totals["d_mixing"].sum(0)
    return totals, parts


def in_batches(form, case, inputs, dtype, rows):
    """run() by head over slices of `rows` batch entries: bounds the memory of large shapes."""
    if rows >= case.batch:
        return run(form, case, inputs, dtype, by_head=True)
    totals, all_parts = {}, {}
    for start in range(0, case.batch, rows):
        piece = {n: t if n == "mixing" else t[start:start + rows] for n, t in inputs.items()}
        total, parts = run(form, case, piece, dtype, by_head=True)
        for name, part in parts.items():
            all_parts.setdefault(name, []).append(part)
            totals.setdefault(name, []).append(total[name])
    for name, pieces in all_parts.items():
        join = (lambda xs: sum(xs)) if name == "d_mixing" else torch.cat
        all_parts[name] = [join(same) for same in zip(*pieces)]
        totals[name] = join(totals[name])
    return totals, all_parts


def size(name, part, reference):
    """The magnitudes of a part of a result; of d_mixing's heads together."""
    part = part.double()
    if name == "d_mixing" and part.dim() > reference.dim():
        return part.square().sum(0).sqrt()
    return part.abs()


def exact(case, inputs):
    """The f64 truth: the definition where it fits, the linear form for long sequences."""
    pairs = case.batch * case.heads * case.layout.tokens * case.keys.tokens
    form = dense if pairs <= 2**25 else blockwise
    summaries = case.heads * len(case.keys.boxes) * case.dk * case.width
    rows = max(1, min(case.batch, 2**27 // max(summaries, 1)))
    return in_batches(form, case, inputs, torch.float64, rows if form is blockwise else case.batch)


def naive(case, inputs, tf32=False):
    """The same-precision computation, autograd included."""
    form = functools.partial(blockwise, multiply=Tf32Product.apply) if tf32 else blockwise
    result, _ = run(form, case, inputs, case.dtype)
    return result


def rms_limit(part):
    """What the root mean square of roundings of these magnitudes may be, in units of epsilon.

    Of many numbers an eighth of epsilon. Where few are nearly all of a result, as beside a denominator
    near zero, chance does not average out; of a single one it is half of epsilon, which no rounding
    exceeds.
    """
    square = part.square()
    total = square.sum().item()
    if total == 0:
        return 0.0
    numbers = total**2 / square.square().sum().item()  # that count; all of them where they are alike
    return square.mean().sqrt().item() * (1 + 3 / numbers**0.5) / 8


def compare(case, ours, truth, parts, plain):
    return compare_draws(case, [(ours, truth, parts, plain)])


def compare_draws(case, draws):
    """Per result: our error, the naive error, both as root mean square and largest, and the limits.

    A draw: ours, truth, parts, naive. d_mixing, which may be of few numbers, is judged by all draws
    together, everything else by the first: an average over draws would hide a bad one.

    Limit: twice the naive error, plus one rounding of what went into the result (rms_limit; for the
    largest error half of epsilon), for results whose parts cancel or whose naive error is small by
    luck. The largest error only guards against single wrong elements: in f32 and f64 it depends on
    the order of summation, so it may be a few roundings.
    """
    epsilon = torch.finfo(case.dtype).eps
    roundings = 0.5 if case.dtype.itemsize == 2 else 8
    rows = []
    for name in draws[0][1]:  # of the truth
        errors, bases, references, sizes = [], [], [], []
        for ours, truth, parts, plain in draws if name == "d_mixing" else draws[:1]:
            reference = truth[name].double()
            references.append(reference)
            errors.append((ours[name].double() - reference).abs())
            bases.append((plain[name].double() - reference).abs())
            sizes.append([size(name, part, reference) for part in parts[name]])
        error, base, reference = (torch.stack(each) for each in (errors, bases, references))
        sizes = [torch.stack(each) for each in zip(*sizes)]
        rms = sum(rms_limit(part) for part in sizes)
        peak = sum(part.max().item() for part in sizes)
        row = dict(name=name, rms=error.square().mean().sqrt().item(), max=error.max().item(),
                   naive_rms=base.square().mean().sqrt().item(), naive_max=base.max().item(),
                   reference_rms=reference.square().mean().sqrt().item())
        row["limit_rms"] = 2 * row["naive_rms"] + epsilon * rms
        row["limit_max"] = 2 * row["naive_max"] + roundings * epsilon * peak
        # NaN compares false, so it never passes.
        row["ok"] = row["rms"] <= row["limit_rms"] and row["max"] <= row["limit_max"]
        rows.append(row)
    return rows
