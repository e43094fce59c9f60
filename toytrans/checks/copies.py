"""Copies of a model: in another precision or mode, without dropout, never the model itself."""

import contextlib
import copy

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from toytrans.checks.subject import Adapter


def copy_of(
    model: Adapter, precision: torch.dtype | None = None, training: bool = False
) -> Adapter | None:
    """The model on a copy of its module, in train mode without dropout; None where it has no copy.

    Weights that are all zero, as in freshly built branches that start closed, become small random
    numbers: nothing could be seen through them.
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
    modules = dict(made.named_modules())
    embeddings = model.embeddings and tuple(modules[names[part]] for part in model.embeddings)
    found = model.on(made, embeddings)
    if any(nn.parameter.is_lazy(p) for p in (*made.parameters(), *made.buffers())):
        materialise(found)
    dtypes = {p.dtype for p in made.parameters() if p.is_floating_point()}
    found.came_as = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)
    if precision is not None:
        made.to(precision)
    found.opened = () if model.facts.is_textbook else _randomize_zero_weights(made)
    for parameter in made.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    if training:
        made.train()
        _without_dropout(made)
    found.original, found.precision, found.training = model, precision, training
    return found


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
        materialise(made)
    finally:
        handle.remove()
    return any(ran)


@torch.no_grad()
def _randomize_zero_weights(module: nn.Module) -> tuple[nn.Parameter, ...]:
    """Give small random numbers to weights that are all zero and can be trained, but for biases
    and embeddings; which these are."""
    random, opened = torch.Generator().manual_seed(0), []
    trainable = any(parameter.requires_grad for parameter in module.parameters())
    for parent in module.modules():
        for name, parameter in parent.named_parameters(recurse=False):
            if isinstance(parent, nn.Embedding) or "bias" in name or name in ("b", "beta"):
                continue
            is_open = parameter.requires_grad or not trainable
            if not is_open or not parameter.is_floating_point() or not parameter.numel():
                continue
            if not bool(parameter.any()):
                noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
                width = parameter.shape[-1] if parameter.dim() > 1 else 4
                parameter.copy_((noise * width**-0.5).to(parameter.dtype))
                opened.append(parameter)
    return tuple(opened)


def _without_dropout(module: nn.Module) -> None:
    """Set every rate of dropout or of skipped layers to zero."""
    configs = {id(c): c for part in module.modules() if (c := getattr(part, "config", None))}
    for owner in (*module.modules(), *configs.values()):
        is_dropout = isinstance(owner, nn.Module) and "drop" in type(owner).__name__.lower()
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            is_named = "drop" in name.lower() or "jitter" in name.lower()
            is_named = is_named or (is_dropout and name in ("p", "rate", "prob"))
            if is_named and isinstance(value, float) and 0 < value <= 1:
                with contextlib.suppress(Exception):
                    setattr(owner, name, 0.0)
