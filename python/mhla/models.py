"""The networks of the paper, made in C++ and trained from Python.

>>> model = mhla.models.create("dit-s/2", attention="mhla", image_size=512)
>>> noise = model(x, t, y)                                     # any nn.Module's life from here on
>>> optimizer = torch.optim.AdamW(model.parameters())
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from . import _library  # noqa: F401


def names() -> list[str]:
    """What `create` knows: "deit-t", "dit-s/2", "lm-340m", "tiny-dit" ..."""
    return list(torch.ops.mhla.model_names())


def create(
    name: str, *, device: str | torch.device = "cpu", attention_options: Mapping | None = None, **options
) -> Model:
    """A network with fresh weights.

    Args:
        name: one of `names()`
        device: where it is made; "meta" gives shapes without memory
        attention_options: options of its attention layers, such as `dict(preset="paper", lepe=3)`
        options: attention= by name (mhla, softmax, linear, gla ...), image_size=, depth= and so on;
            an unknown one is an error that lists the known
    """
    inner = {f"attention.{key}": value for key, value in (attention_options or {}).items()}
    return Model(name, _text({**options, **inner}), str(device))


def options_of(name: str, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Options of the network that a checkpoint fits, where its names tell: the authors' Wan-MHLA, all or
    hybrid, gated or not. `create(name, **options_of(name, state))` makes it."""
    words = torch.ops.mhla.model_options(name, dict(state)).split()
    return dict(word.split("=", 1) for word in words)


def _text(options: Mapping) -> str:
    def value(key: str, v) -> str:
        if isinstance(v, bool):
            return str(v).lower()
        text = "x".join(map(str, v)) if isinstance(v, (tuple, list)) else str(v)
        if not text or text.split() != [text]:  # blanks part options
            raise ValueError(f"[mhla.models] {key}: expected a value without blanks, got {v!r}")
        return text

    return " ".join(f"{key}={value(key, v)}" for key, v in options.items())


class Model(nn.Module):
    """One network. Its parameters, under upstream's names, are the tensors that the C++ modules hold."""

    def __init__(self, name: str, options: str = "", device: str = "cpu"):
        super().__init__()
        self.model_name, self.options = name, options
        self._core = torch.classes.mhla.Model(name, options, device)
        for path, parameter in self._core.parameters().items():
            # The tensor itself becomes a Parameter: a copy would not be what C++ reads.
            trained = parameter.requires_grad
            parameter.__class__ = nn.Parameter
            parameter.requires_grad_(trained)
            owner, last = self._owner(path)
            owner.register_parameter(last, parameter)
        self._held = self._core.buffers()
        for path, buffer in self._held.items():
            owner, last = self._owner(path)
            owner.register_buffer(last, buffer)

    def _owner(self, path: str) -> tuple[nn.Module, str]:
        *parents, last = path.split(".")
        owner: nn.Module = self
        for word in parents:
            if word not in owner._modules:
                owner.add_module(word, nn.Module())
            owner = owner._modules[word]
        return owner, last

    @property
    def family(self) -> str:
        return self._core.family()

    @property
    def input_names(self) -> list[str]:
        """What `forward` takes, in this order."""
        return list(self._core.input_names())

    @torch.compiler.disable
    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """By position or by the names of `input_names`."""
        names = self.input_names
        unknown = set(named) - set(names[len(inputs) :])
        if unknown or len(inputs) + len(named) != len(names):
            given = [*names[: len(inputs)], *named]
            raise TypeError(f"[mhla.models] {self.model_name} takes {', '.join(names)}; got {', '.join(given) or 'nothing'}")
        return self._core.forward([*inputs, *(named[name] for name in names[len(inputs) :])])

    def recompute(self, on: bool = True) -> Model:
        """Memory for time: from now on each block keeps only its input for the backward pass and runs
        again there, with the same random numbers. Returns the network."""
        self._core.set_recompute(on)
        return self

    def example_inputs(self, batch: int = 1) -> list[Tensor]:
        """Random inputs of the size the network was made for."""
        return list(self._core.example_inputs(batch))

    def init_state(self):
        """Language models: a state that has read nothing, for `step`."""
        return torch.classes.mhla.ModelStream()

    def step(self, ids: Tensor, state) -> Tensor:
        """Reads ids `[B, T]`, one token or several, after those that the state has read; returns their
        logits `[B, T, vocab]`. No gradients."""
        return self._core.step(ids, state)

    @torch.no_grad()
    def load(self, source, strict: bool = True) -> str:
        """Weights of a file (safetensors, sharded or not, or torch.save's) or of a state dict: this
        project's, timm's, diffusers', transformers' and others; positions and mixing matrices of another
        size are fitted, and a stock checkpoint leaves what MHLA adds at its start. Returns a report."""
        if isinstance(source, Mapping):
            return self._core.load_tensors(dict(source), strict)
        return self._core.load_file(str(source), strict)

    @property
    def packages(self) -> list[str]:
        """Whose names `export` and `save` know for this network: "upstream", "diffusers" ..."""
        return list(self._core.packages())

    def export(self, package: str = "upstream", partial: bool = False) -> dict[str, Tensor]:
        """The tensors under the names of another package, for its `load_state_dict`; they share the
        network's memory. An error where that package computes something else or has no place for some,
        unless `partial` leaves those out."""
        return dict(self._core.export_as(package, partial)[0])

    def export_config(self, package: str) -> str:
        """The config.json that belongs to it; empty where the package has none."""
        return self._core.export_as(package, True)[3]

    def save(self, path, package="upstream", *, partial=False, dtype="", max_file_bytes=0) -> list[str]:
        """Writes safetensors under the names of `package`, rounded to `dtype` ("bf16" or a torch.dtype) and
        split into files of `max_file_bytes` where given; returns the files."""
        dtype = str(dtype).removeprefix("torch.")
        return list(self._core.save(str(path), package, partial, dtype, max_file_bytes))

    def constrain_mixing(self) -> None:
        """Brings mixing matrices back into range; `mhla.constrain_` calls it."""
        self._core.constrain()

    def cost(self) -> dict[str, dict[str, float]]:
        """Multiply-adds of one sample's forward pass, and elements kept for its backward pass, by part."""
        return {part: dict(macs=macs, kept=kept) for part, macs, kept in self._core.cost()}

    def train(self, mode: bool = True) -> Model:
        self._core.train(mode)
        return super().train(mode)

    def load_state_dict(self, state_dict, strict: bool = True, assign: bool = False):
        if assign:
            raise ValueError("[mhla.models] load_state_dict: assign=True would part the parameters from the network")
        return super().load_state_dict(state_dict, strict)

    def _apply(self, fn, recurse: bool = True):
        before = dict(self.named_parameters())
        super()._apply(fn, recurse)
        for path, parameter in self.named_parameters():
            if parameter is not before[path]:
                raise RuntimeError("[mhla.models] the network cannot move there: make it with device= instead")
        for path, held in self._held.items():  # nn.Module puts new tensors in the place of buffers
            owner, last = self._owner(path)
            if owner._buffers[last] is not held:
                held.data = owner._buffers[last]
                owner._buffers[last] = held
        return self

    def __deepcopy__(self, memo):
        made = _restore(self.model_name, self.options, self.state_dict(), self.training, self._trained())
        memo[id(self)] = made
        return made

    def __reduce__(self):
        return _restore, (self.model_name, self.options, self.state_dict(), self.training, self._trained())

    def _trained(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self.parameters()]

    def extra_repr(self) -> str:
        return f"{self.model_name!r}" + (f", {self.options}" if self.options else "")


def _restore(name: str, options: str, state: Mapping, training: bool, trained: list[bool]) -> Model:
    model = Model(name, options)
    some = next(iter(state.values()), None)
    if some is not None:
        model.to(some.device)
    for path, value in (*model.named_parameters(), *model.named_buffers()):
        value.data = value.data.to(state[path].dtype)
    model.load_state_dict(state)
    for parameter, each in zip(model.parameters(), trained):
        parameter.requires_grad_(each)
    return model.train(training)
