"""libmhla through its C ABI with PyTorch tensors: the least that tests and benchmarks need."""

import ctypes
import functools
import glob
import os
import re
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORKSPACE_ALIGNMENT = 256  # mhla::kWorkspaceAlignment
UNSUPPORTED = 2  # MHLA_UNSUPPORTED
DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
DTYPE_NAMES = {
    torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16",
}


class Error(RuntimeError):
    """A call of the library failed; the message is the library's own."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Refused(Error):
    """Meaningful, but the implementation asked for does not serve it."""


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p), ("dtype", c_int32), ("device_kind", c_int32), ("device_index", c_int32),
        ("rank", c_int32), ("shape", c_int64 * 4), ("strides", c_int64 * 4),
    ]

    @classmethod
    def of(cls, tensor):
        if tensor is None:
            return cls()
        rank = tensor.dim()
        pad = (0,) * (4 - rank)
        return cls(
            data=tensor.data_ptr(),
            dtype=DTYPES[tensor.dtype],
            device_kind=1 if tensor.is_cuda else 0,
            device_index=tensor.device.index or 0,
            rank=rank,
            shape=(c_int64 * 4)(*tensor.shape, *pad),
            strides=(c_int64 * 4)(*tensor.stride(), *pad),
        )


def _struct(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": [(field, Tensor) for field in fields]})


ForwardInputs = _struct("ForwardInputs", "q", "k", "v", "mixing", "q_den", "k_den")
BackwardInputs = _struct(
    "BackwardInputs", "q", "k", "v", "mixing", "o", "d_o", "q_den", "k_den")
Gradients = _struct("Gradients", "d_q", "d_k", "d_v", "d_mixing", "d_q_den", "d_k_den")


def library_path():
    if os.environ.get("MHLA_LIBRARY"):
        return os.environ["MHLA_LIBRARY"]
    for preset in ("cuda", "release", "debug"):
        found = glob.glob(f"{ROOT}/build/{preset}/**/libmhla.so", recursive=True)
        if found:
            return sorted(found, key=len)[0]
    raise FileNotFoundError("no libmhla.so below build/: build it, or set MHLA_LIBRARY")


@functools.cache
def library():
    lib = ctypes.CDLL(library_path())
    signatures = {
        "mhla_version": (c_char_p, []),
        "mhla_last_error": (c_char_p, []),
        "mhla_problem_create": (c_int, [c_char_p, POINTER(c_void_p)]),
        "mhla_problem_text": (c_char_p, [c_void_p]),
        "mhla_problem_destroy": (None, [c_void_p]),
        "mhla_plan_create": (c_int, [c_void_p, c_char_p, c_int, POINTER(c_void_p)]),
        "mhla_plan_implementation": (c_char_p, [c_void_p]),
        "mhla_plan_explain": (c_char_p, [c_void_p]),
        "mhla_plan_forward_workspace": (c_size_t, [c_void_p]),
        "mhla_plan_backward_workspace": (c_size_t, [c_void_p]),
        "mhla_plan_destroy": (None, [c_void_p]),
        "mhla_forward": (c_int, [c_void_p, POINTER(ForwardInputs), POINTER(Tensor), c_void_p,
                                 c_size_t, c_void_p]),
        "mhla_backward": (c_int, [c_void_p, POINTER(BackwardInputs), POINTER(Gradients), c_void_p,
                                  c_size_t, c_void_p]),
        "mhla_mixing_from": (c_int, [c_void_p, c_int64, c_int64, c_int64, POINTER(c_void_p)]),
        "mhla_mixing_destroy": (None, [c_void_p]),
        "mhla_state_create": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
        "mhla_state_prefill": (c_int, [c_void_p, POINTER(ForwardInputs), POINTER(Tensor),
                                       c_void_p]),
        "mhla_state_step": (c_int, [c_void_p, POINTER(ForwardInputs), POINTER(Tensor), c_void_p]),
        "mhla_state_fork": (c_int, [c_void_p, POINTER(c_void_p)]),
        "mhla_state_rewind": (c_int, [c_void_p, c_int64]),
        "mhla_state_tokens": (c_int64, [c_void_p]),
        "mhla_state_bytes": (c_size_t, [c_void_p]),
        "mhla_state_save": (c_int, [c_void_p, c_char_p]),
        "mhla_state_load": (c_int, [c_char_p, POINTER(c_void_p)]),
        "mhla_state_destroy": (None, [c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def _check(status):
    if status != 0:
        message = library().mhla_last_error().decode()
        raise (Refused if status == UNSUPPORTED else Error)(status, message)


class Plan:
    """One problem on one implementation: `implementation=None` takes the planner's choice."""

    def __init__(self, text, implementation=None, threads=0):
        self._handle = c_void_p()  # first: __del__ runs even when the rest fails
        lib = library()
        problem = c_void_p()
        _check(lib.mhla_problem_create(text.encode(), byref(problem)))
        try:
            name = implementation.encode() if implementation else None
            _check(lib.mhla_plan_create(problem, name, threads, byref(self._handle)))
        finally:
            lib.mhla_problem_destroy(problem)
        self.text = text
        self.implementation = lib.mhla_plan_implementation(self._handle).decode()
        self.forward_workspace = lib.mhla_plan_forward_workspace(self._handle)
        self.backward_workspace = lib.mhla_plan_backward_workspace(self._handle)

    def __del__(self):
        if self._handle:
            library().mhla_plan_destroy(self._handle)

    def explain(self):
        return library().mhla_plan_explain(self._handle).decode()


class State:
    """The streaming form. `mixing`: [M, M] or [H, M, M], any device."""

    def __init__(self, text=None, mixing=None, handle=None):
        self._handle = handle or c_void_p()  # first: __del__ runs even when the rest fails
        if handle:
            return
        lib = library()
        problem, weights = c_void_p(), c_void_p()
        host = mixing.detach().float().cpu().contiguous()
        heads = host.shape[0] if host.dim() == 3 else 0
        try:
            _check(lib.mhla_problem_create(text.encode(), byref(problem)))
            _check(lib.mhla_mixing_from(host.data_ptr(), heads, host.shape[-2], host.shape[-1],
                                        byref(weights)))
            _check(lib.mhla_state_create(problem, weights, byref(self._handle)))
        finally:
            lib.mhla_mixing_destroy(weights)
            lib.mhla_problem_destroy(problem)

    def __del__(self):
        if self._handle:
            library().mhla_state_destroy(self._handle)

    def prepared(self, o, q, k, v, q_den=None, k_den=None):
        """A call that reads these tokens; one of them is a step."""
        inputs = ForwardInputs(*(Tensor.of(t) for t in (q, k, v, None, q_den, k_den)))
        output, keep = Tensor.of(o), (o, q, k, v, q_den, k_den)
        lib = library()
        function = lib.mhla_state_step if q.shape[1] == 1 else lib.mhla_state_prefill

        def call(keep=keep):
            status = function(self._handle, byref(inputs), byref(output), _stream(q))
            if status:
                _check(status)
        return call

    def read(self, o, **tokens):
        self.prepared(o, **tokens)()

    def fork(self):
        handle = c_void_p()
        _check(library().mhla_state_fork(self._handle, byref(handle)))
        return State(handle=handle)

    def rewind(self, tokens):
        _check(library().mhla_state_rewind(self._handle, tokens))

    def save(self, path):
        _check(library().mhla_state_save(self._handle, str(path).encode()))

    @classmethod
    def load(cls, path):
        handle = c_void_p()
        _check(library().mhla_state_load(str(path).encode(), byref(handle)))
        return cls(handle=handle)

    @property
    def tokens(self):
        return library().mhla_state_tokens(self._handle)

    @property
    def bytes(self):
        return library().mhla_state_bytes(self._handle)


def reason(refusal, implementation):
    """What one implementation gave as its reason in the list that a refusal carries."""
    found = re.search(rf"; {re.escape(implementation)}: ([^;]*)", str(refusal))
    return found.group(1) if found else str(refusal)


def plan(text, implementation=None):
    return Plan(text, implementation)


def workspace(size, device):
    """An aligned uint8 tensor of `size` bytes (torch aligns CUDA memory to 512, the CPU to 64)."""
    raw = torch.empty(size + WORKSPACE_ALIGNMENT, dtype=torch.uint8, device=device)
    start = -raw.data_ptr() % WORKSPACE_ALIGNMENT
    return raw[start:start + size]


def _stream(tensor):
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else None


def _pointer(space):
    return space.data_ptr() if space is not None and space.numel() else None


def _forward_call(plan, q, k, v, mixing, o, q_den, k_den, space):
    inputs = ForwardInputs(*(Tensor.of(t) for t in (q, k, v, mixing, q_den, k_den)))
    output = Tensor.of(o)
    size = space.numel() if space is not None else 0
    keep = (q, k, v, mixing, o, q_den, k_den, space)
    function, pointer = library().mhla_forward, _pointer(space)

    def call(keep=keep):
        status = function(plan._handle, byref(inputs), byref(output), pointer, size, _stream(q))
        if status:
            _check(status)
    return call


def forward(plan, q, k, v, mixing, q_den=None, k_den=None, o=None, space=None):
    """o [B, Nq, H, dv]; given `o` and `space` are written, otherwise they are allocated."""
    if o is None:
        o = q.new_empty(*q.shape[:3], v.shape[3])
    if space is None:
        space = workspace(plan.forward_workspace, q.device)
    _forward_call(plan, q, k, v, mixing, o, q_den, k_den, space)()
    return o


def prepared_forward(plan, q, k, v, mixing, o, space, q_den=None, k_den=None):
    """The same with the argument structures built once: what a benchmark calls."""
    return _forward_call(plan, q, k, v, mixing, o, q_den, k_den, space)


def _backward_call(plan, inputs, gradients, space):
    names = ("q", "k", "v", "mixing", "o", "d_o", "q_den", "k_den")
    given = BackwardInputs(*(Tensor.of(inputs.get(name)) for name in names))
    wanted = Gradients(*(Tensor.of(gradients.get(name)) for name, _ in Gradients._fields_))
    size = space.numel() if space is not None else 0
    keep = (inputs, gradients, space)
    function, pointer = library().mhla_backward, _pointer(space)

    def call(keep=keep):
        status = function(plan._handle, byref(given), byref(wanted), pointer, size,
                          _stream(inputs["q"]))
        if status:
            _check(status)
    return call


def backward(plan, q, k, v, mixing, o, d_o, q_den=None, k_den=None, gradients=None, space=None):
    """Gradients by name; a dictionary given is filled, otherwise all are allocated."""
    inputs = dict(q=q, k=k, v=v, mixing=mixing, o=o, d_o=d_o, q_den=q_den, k_den=k_den)
    if gradients is None:
        names = ("q", "k", "v", "mixing", "q_den", "k_den")
        gradients = {
            "d_" + name: torch.empty(inputs[name].shape, dtype=inputs[name].dtype, device=q.device)
            for name in names if inputs[name] is not None
        }
    if space is None:
        space = workspace(plan.backward_workspace, q.device)
    _backward_call(plan, inputs, gradients, space)()
    return gradients


def prepared_backward(plan, inputs, gradients, space):
    return _backward_call(plan, inputs, gradients, space)


def implementations(device):
    """Names compiled in for a device kind: MHLA_IMPLEMENTATIONS, or the candidates of a plan."""
    if os.environ.get("MHLA_IMPLEMENTATIONS"):
        return os.environ["MHLA_IMPLEMENTATIONS"].split(",")
    text = f"sequence=64 block=16 heads=1 dk=64 dv=64 device={device}"
    names = []
    for dtype in ("bf16", "f32"):  # a plan lists refused candidates too; one may still fail whole
        try:
            explained = plan(f"{text} dtype={dtype}").explain()
        except Error as error:
            explained = str(error)
        found = re.findall(r"\b(reference|(?:cpu|cuda)\.[a-z][\w.]*\w)", explained)
        names += found
    cuda = device.startswith("cuda")
    return [name for name in dict.fromkeys(names) if name.startswith("cuda.") == cuda]
