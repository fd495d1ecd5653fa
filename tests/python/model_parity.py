"""What the parity tests share: weights of another package, given to a network here."""

import torch


def shake(module, seed=0, scale=0.1):
    """Random weights everywhere, so that no parameter stands at a value that hides it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            spread = scale / max(parameter.shape[-1], 1) ** 0.5 if parameter.dim() > 1 else scale
            parameter += spread * torch.randn(parameter.shape, generator=generator) * 3
    return module.eval()


def assert_close(mine, theirs, tolerance=1e-5):
    """Relative to the largest value, in f32."""
    assert mine.shape == theirs.shape
    error = (mine - theirs).abs().max() / theirs.abs().max()
    assert error < tolerance, f"relative error {error:.2e}"
    assert theirs.abs().max() > 1e-3
