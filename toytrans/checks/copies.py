"""Copies of a model: in another precision or mode, without dropout, never the model itself."""

import contextlib
import copy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from toytrans.checks.subject import Adapter

DROPOUTS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
}


SMALL = 2_000_000
"""A model of fewer weights is asked on one thread."""

DROPPED_BELOW = -1e4
"""Scores below it are masked."""


@dataclass(eq=False)
class Copy:
    """A model on a copy of its own: `precision` fp64 or as the model came, eval or train mode.

    original: what it is a copy of. came_as: the coarsest precision of the model's weights.
    opened: weights that are all zero in the model, and here small random numbers.
    Found out while it is asked:
        true_precision: that of its logits
        overwritten: which of the ids that it is handed it changes
        drops_masked: whether dropout is handed scores of which some are masked
    """

    model: Adapter
    precision: torch.dtype | None
    original: Adapter | None = None
    training: bool = False
    opened: tuple[nn.Parameter, ...] = ()
    came_as: torch.dtype | None = None
    true_precision: torch.dtype | None = None
    overwritten: set[str] = field(default_factory=set)
    drops_masked: bool = False

    @property
    def mode(self) -> str:
        return "train" if self.training else "eval"

    @contextlib.contextmanager
    def without_dropout_and_with_state_kept(self) -> Iterator[None]:
        """A copy in train mode is asked without dropout, and keeps its buffers. A textbook model
        has no other dropout than that whose rates are zero already, and no buffers that change."""
        module = self.model.module
        if module is None or not self.training or self.model.facts.is_textbook:
            yield
            return
        with restored(module.buffers()), NoDropout(self):
            yield


def copy_of(
    model: Adapter, precision: torch.dtype | None = None, training: bool = False
) -> Copy | None:
    """The model on a copy of its module; None where it has no copy.

    Weights that are all zero, as in freshly built branches that start closed, become small random
    numbers: nothing could be seen through them. Dropout of training is zero.
    """
    module = model.module
    if module is None:
        return None
    names = {part: name for name, part in module.named_modules()}
    if any(part not in names for part in model.embeddings or ()):
        return None  # a copy would not use these embeddings
    try:
        made = copy.deepcopy(module)
    except Exception:  # tensors inside a graph, locks, open files: anything may refuse
        return None
    made = made.eval().cpu()
    if any(nn.parameter.is_lazy(p) for p in (*made.parameters(), *made.buffers())):
        materialise(model.on(made, None))
    dtypes = {p.dtype for p in made.parameters() if p.is_floating_point()}
    came_as = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)
    if precision is not None:
        made = made.to(precision)
    trainable = any(p.requires_grad for p in made.parameters())
    opened = () if model.facts.is_textbook else randomize_zero_weights(made, trainable)
    for parameter in made.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    if training:
        made.train()
        without_dropout(made)
    modules = dict(made.named_modules())
    embeddings = model.embeddings and tuple(modules[names[part]] for part in model.embeddings)
    return Copy(model.on(made, embeddings), precision, model, training, opened, came_as)


def materialise(model: Adapter) -> None:
    """Let lazy modules find their sizes, the same weights in each copy. Whatever the model raises
    is raised again when it is asked."""
    symbols = model.facts.symbols()
    with contextlib.suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices=[]):
        src, tgt_in, _ = model.batch([(symbols[:2], symbols[:2])])
        torch.manual_seed(0)
        model.answer(src, tgt_in)


def copies_run_it(model: Adapter) -> bool:
    """Whether a copy of the module runs parts of the module itself: a `forward` that was replaced
    by a function holds on to them."""
    made = copy_of(model)
    if made is None or model.module is None:
        return False
    parts, ran = set(model.module.modules()), []
    handle = register_module_forward_pre_hook(lambda part, _: ran.append(part in parts))
    try:
        materialise(made.model)
    finally:
        handle.remove()
    return any(ran)


@contextlib.contextmanager
def in_eval_mode(module: nn.Module | None) -> Iterator[None]:
    """A module and its parts, which are then as they were."""
    before = {} if module is None else {part: part.training for part in module.modules()}
    try:
        if module is not None:
            module.eval()
        yield
    finally:
        for part, training in before.items():
            part.training = training


@torch.no_grad()
def randomize_zero_weights(module: nn.Module, trainable: bool) -> tuple[nn.Parameter, ...]:
    """Give small random numbers to weights that are all zero and can be trained, but for biases
    and embeddings; which these are."""
    random = torch.Generator().manual_seed(0)
    opened = []
    for parent in module.modules():
        if isinstance(parent, nn.Embedding):
            continue
        for name, parameter in parent.named_parameters(recurse=False):
            open_to_all = parameter.requires_grad or not trainable
            if not open_to_all or not parameter.is_floating_point() or not parameter.numel():
                continue
            if "bias" in name or name in ("b", "beta") or bool(parameter.any()):
                continue
            noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            width = parameter.shape[-1] if parameter.dim() > 1 else 4
            parameter.copy_((noise * width**-0.5).to(parameter.dtype))
            opened.append(parameter)
    return tuple(opened)


@contextlib.contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors, which are afterwards what they were."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield [tensor for tensor, _ in kept]
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                if tensor.shape == value.shape and not torch.equal(tensor, value):
                    tensor.data.copy_(value)


@contextlib.contextmanager
def zeroed(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Parameters are all zero meanwhile."""
    with restored(parameters) as kept:
        for parameter in kept:
            parameter.data.zero_()
        yield


def without_dropout(module: nn.Module) -> None:
    """Set every rate of dropout or of skipped layers to zero."""
    configs = {id(c): c for part in module.modules() if (c := getattr(part, "config", None))}
    for owner in (*module.modules(), *configs.values()):
        is_dropout = isinstance(owner, nn.Module) and "drop" in type(owner).__name__.lower()
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            is_rate = isinstance(value, float) and 0 < value <= 1
            named = "drop" in name.lower() or (is_dropout and name in ("p", "rate", "prob"))
            if is_rate and (named or "jitter" in name.lower()):
                with contextlib.suppress(Exception):
                    setattr(owner, name, 0.0)


class NoDropout(TorchFunctionMode):
    """Dropout that a model calls as a function, with a rate that no attribute holds."""

    def __init__(self, of: Copy) -> None:
        super().__init__()
        self.copy = of

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in DROPOUTS:
            given = args[0] if args else named["input"]
            if given.numel() and bool(given.detach().min() < DROPPED_BELOW):
                self.copy.drops_masked = True
            return given
        if func is F.scaled_dot_product_attention and "dropout_p" in named:
            named = named | {"dropout_p": 0.0}
        return func(*args, **named)


PRODUCTS = re.compile("linear|mm|matmul|einsum|attention|encoder_layer|lstm|gru|rnn")
"""Functions that sum many products, by their names."""

CALL = 50_000
"""Multiplications that take about as long as calling a function."""


class Counted(TorchFunctionMode):
    """The work of an answer: multiplications in its products, and its calls of functions. It is the
    same on any machine."""

    def __init__(self) -> None:
        super().__init__()
        self.work = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.work += CALL
        first = result[0] if isinstance(result, tuple) and result else result
        if PRODUCTS.search(getattr(func, "__name__", "")) and isinstance(first, Tensor):
            given = [t for a in args for t in (a if isinstance(a, tuple | list) else (a,))]
            shapes = [t.shape for t in given if isinstance(t, Tensor) and not t.is_nested]
            weights = sum(shape.numel() for shape in shapes[1:] if len(shape) == 2)
            if shapes and shapes[0] and not first.is_nested:
                rows = first.numel() // max(1, first.shape[-1]) if first.dim() else 1
                self.work += rows * weights or first.numel() * shapes[0][-1]
        return result


class RoundedAgain(TorchFunctionMode):
    """Products in half precision differ in their last bit, as if they were summed in another
    order."""

    def __init__(self) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not PRODUCTS.search(getattr(func, "__name__", "")) or not isinstance(result, Tensor):
            return result
        if result.dtype not in (torch.float16, torch.bfloat16) or result.is_nested:
            return result
        way = 2 * torch.rand(result.shape, generator=self.random) - 1
        return (result.float() * (1 + way * torch.finfo(result.dtype).eps / 2)).to(result.dtype)


@contextlib.contextmanager
def on_one_thread(model: Adapter) -> Iterator[None]:
    """Small models gain nothing by several threads, which wait for each other at every step."""
    before = torch.get_num_threads()
    weights = model.module.parameters() if model.module is not None else ()
    count = sum(p.numel() for p in weights if not nn.parameter.is_lazy(p))
    torch.set_num_threads(1 if count < SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
