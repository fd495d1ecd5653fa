"""What the tests of replace_attention do with every model."""

import torch

import mhla


def check(model, call, layers, **options):
    """Swaps, then runs everything a user does with a model."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert mhla.replace_attention(model, **options) is model
    swapped = [m for m in model.modules() if type(m).__name__ == "SwappedAttention"]
    assert len(swapped) == layers
    after = model.state_dict()
    for name, value in before.items():  # every old weight is there, under its name
        assert torch.equal(after[name], value), name

    model.eval()
    out = call(model)
    out.square().mean().backward()
    # A class token reads the last layer with weights of its own, so that one may have no gradient.
    assert swapped[0].mixing.grad.abs().sum() > 0

    state = {name: value.clone() for name, value in after.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert not torch.equal(call(model), out)
    model.load_state_dict(state)
    assert torch.equal(call(model), out)

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(call(compiled), out)
    return swapped
