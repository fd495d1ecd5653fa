"""What ours is compared with in the same run: softmax attention and the authors' composition."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def softmax_attention(backend, causal):
    def attention(q, k, v, mixing):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal,
            ).transpose(1, 2)
    return attention


def composition(case):
    """The authors' form from PyTorch operations: their normaliser, their chunk loop for language.

    Pictures come in block order, since the authors permute once per model and not per layer;
    video is permuted inside, as theirs is. Mixing is a matrix product (theirs: a 1x1 convolution).
    """
    if case.mask == "causal":
        return lambda q, k, v, mixing: _causal(case, q, k, v, mixing)
    if len(case.layout.sizes[0]) < 3:
        count, slots = case.layout.table.shape
        return lambda q, k, v, mixing: _image(count, slots, q, k, v, mixing)
    return _video(case)


def _attend(q, k, v, mixing):
    """[B, H, M, n, D] in block order."""
    q, k = torch.relu(q) + 1e-6, torch.relu(k) + 1e-6
    mixing = mixing.to(q.dtype)
    summaries = k.mT @ v
    mixed = (mixing @ summaries.flatten(3)).view_as(summaries)
    own = (q @ k.sum(3).unsqueeze(-1)).squeeze(-1)  # each block's query with its own keys
    return (q @ mixed) / (mixing @ own + 1e-6).unsqueeze(-1)


def _image(count, slots, q, k, v, mixing):
    def blocks(x):
        return x.unflatten(1, (count, slots)).permute(0, 3, 1, 2, 4)  # [B, H, M, n, D]
    o = _attend(blocks(q), blocks(k), blocks(v), mixing)
    return o.permute(0, 2, 3, 1, 4).flatten(1, 2)


def _video(case):
    table = case.layout.table
    ragged = bool((table < 0).any())
    count, slots = table.shape
    f, h, w = case.layout.sizes[0]
    a, b, c = case.layout.blocks

    def attention(q, k, v, mixing):
        def blocks(x):
            x = x.view(x.shape[0], a, f // a, b, h // b, c, w // c, *x.shape[2:])
            return x.permute(0, 7, 1, 3, 5, 2, 4, 6, 8).reshape(
                x.shape[0], x.shape[7], count, slots, x.shape[8])
        o = _attend(blocks(q), blocks(k), blocks(v), mixing)
        o = o.view(*o.shape[:2], a, b, c, f // a, h // b, w // c, -1)
        return o.permute(0, 2, 5, 3, 6, 4, 7, 1, 8).flatten(1, 6)

    # The authors' code has no ragged blocks; padding to whole blocks would be another problem.
    return None if ragged else attention


def _causal(case, q, k, v, mixing):
    """Chunk by chunk in f32, as the authors do."""
    chunk = case.layout.block[0]

    def blocks(x):
        return x.float().unflatten(1, (-1, chunk)).permute(0, 3, 1, 2, 4)  # [B, H, M, n, D]
    q, k, v = torch.relu(blocks(q)) * case.scale, torch.relu(blocks(k)), blocks(v)
    summaries = k.mT @ v
    outputs = []
    for i in range(q.shape[2]):
        o = mixing[i, i] * (torch.tril(q[:, :, i] @ k[:, :, i].mT) @ v[:, :, i])
        if i > 0:
            state = torch.einsum("m,bhmde->bhde", mixing[i, :i], summaries[:, :, :i])
            o = o + q[:, :, i] @ state
        outputs.append(o)
    o = torch.stack(outputs, dim=2)  # [B, H, M, n, D]
    return o.permute(0, 2, 3, 1, 4).flatten(1, 2).to(torch.bfloat16)


def peers(case, compiled):
    """Name -> attention(q, k, v, mixing), all on [B, N, H, D]."""
    causal = case.mask == "causal"
    found = {name: softmax_attention(backend, causal) for name, backend in BACKENDS.items()}
    eager = composition(case)
    if eager is not None:
        found["eager"] = eager
        if compiled:
            torch._dynamo.reset()  # one graph per shape, no recompilation as dynamic
            found["compiled"] = torch.compile(eager, dynamic=False)
    return found


def calls(attention, sets, what):
    """One closure per set of inputs; forward+backward takes gradients of q, k, v and the mixing."""
    made = []
    for inputs in sets:
        q, k, v, mixing = (inputs[n].detach() for n in ("q", "k", "v", "mixing"))
        if what == "forward":
            def call(operands=(q, k, v, mixing)):
                with torch.no_grad():
                    attention(*operands)
        else:
            operands = [t.requires_grad_() for t in (q, k, v, mixing)]

            def call(operands=operands, d_o=inputs["d_o"]):
                torch.autograd.grad(attention(*operands), operands, d_o, allow_unused=True)
        made.append(call)
    return made
