"""Weights: every matrix moves some output."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.common_causes import NO_GRADIENTS
from toytrans.checks.model import RAISED, NoAnswer
from toytrans.checks.numbers import largest
from toytrans.checks.outcome import Evidence, Judged, Outcome, does_not_apply, fails, passes, unsure
from toytrans.checks.recording import recorded
from toytrans.checks.registry import Check
from toytrans.checks.torch_modes import outputs_of, restored

WEIGHTS = Check(
    "weights",
    "every matrix of weights moves some output",
    how="gradients of all outputs; matrices without one replaced",
    limits="Vectors are not asked for, such as biases and the weights of norms. Of a table of "
    "embeddings some rows are enough.",
    follows=("reach",),
)

LONGER = 64
"""Symbols of longer sequences, of which that is asked which moves nothing in short ones."""

CHOOSING = re.compile("topk|sort|argsort|kthvalue")
"""Operations that choose by what their input holds."""

MOST_DRAWS = 5
"""How many times other weights are drawn, to see whether they choose other experts."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix of weights, or the third of one that makes queries, keys or values of a fused
    projection, or some rows or columns. owner: the name of the module that holds it; block: an
    axis, where its lines begin, and how many there are."""

    name: str
    owner: str
    parameter: nn.Parameter
    third: int | None = None
    block: tuple[int, int, int] | None = None

    def of(self, like: Tensor) -> Tensor:
        """Its part of a tensor of the parameter's shape, a view."""
        whole = like if self.third is None else like.chunk(3)[self.third]
        return whole if self.block is None else whole.narrow(*self.block)


# Why no output depends on a matrix -----------------------------------------------------------


def was_left_out(evidence: Evidence) -> bool:
    """Whether the module was never called, and others of its list were."""
    return bool(evidence["is_left_out"])


LEFT_OUT = WEIGHTS.cause(
    "left_out",
    when="a module is never called, and others of the same list are",
    words="{where} ({count}){others} is never called, though others of its list are",
    remedy="does the loop over the list leave it out?",
    fits=was_left_out,
)
THROWN_AWAY = WEIGHTS.cause(
    "thrown_away",
    when="a module is called, and no output depends on its matrices, whatever they hold",
    words="no output depends on {where} ({count}){others}, though it is computed",
    remedy="is its result thrown away, replaced by a later one, multiplied by 0, or closed by a "
    "mask?",
)
NEVER_CALLED = WEIGHTS.doubt(
    "never_called",
    when="a module is never called, nor any other of its kind",
    words="{where} ({count}){others} is never called",
    remedy="call it, or take it away",
)
HANDED_ON = WEIGHTS.doubt(
    "handed_on",
    when="a module gives what depends on a matrix beside its first result, and nothing takes it",
    words="what {where}{others} makes is handed on beside another result, and no output depends on "
    "it",
    remedy="is it left of a model that this one was made of, as a pooler is?",
)
FROZEN = WEIGHTS.doubt(
    "frozen",
    when="no output depends on a matrix that needs no gradient",
    words="no output depends on {where}{others}, which is frozen (requires_grad=False)",
)
NOT_CHOSEN = WEIGHTS.doubt(
    "not_chosen",
    when="no output depends on a matrix, and some does where other weights are drawn",
    words="with these weights no output depends on {where} ({count}){others}; with others "
    "some does, as of experts that were not chosen, or of units that never fire",
)
CHOSEN_FROM = WEIGHTS.doubt(
    "chosen_from",
    when="what a module makes is then sorted, chosen from by topk, or sliced to nothing, and moves "
    "no output",
    words="what {where} ({count}){others} makes is then chosen from, by topk or a slice, and in "
    "sequences of up to {length} symbols no choice moves an output",
    remedy="does it matter in longer ones?",
)
CUT_OFF = WEIGHTS.doubt(
    "cut_off",
    when="outputs depend on a matrix that no gradient reaches",
    words="outputs depend on {where}{others}, but no gradient reaches it, so training leaves it as "
    "it is",
    remedy="is that meant (detach, no_grad, argmax)?",
)
NAN_GRADIENT = WEIGHTS.doubt(
    "nan_gradient",
    when="the gradient of ordinary outputs towards a matrix is NaN",
    words="the gradient towards {where}{others} is NaN though real outputs are numbers, which ends "
    "a training at its first step",
    remedy="does a mask close every key of a query with -inf, as of a pad? softmax then has no "
    "gradient, whatever comes after it",
)


# The question --------------------------------------------------------------------------------


@WEIGHTS.part("every matrix")
def every_matrix(asked: Asked) -> Outcome:
    """Gradients of the logits towards every matrix are taken once. Where a matrix has none, its
    numbers are replaced, and then other weights are drawn everywhere: what moves no output in any
    of these ways is dead. Where a model gives more than logits, those other outputs count too."""
    model = asked.model
    if model.module is None:
        return does_not_apply("a function shows no weights")
    if model is model.original:
        return does_not_apply("the weights of a model that cannot be copied are left as they are")
    if asked.dtype not in tolerances.LOGITS:
        return does_not_apply("half precision rounds small gradients to 0")
    gradients = gradients_of_matrices(asked)
    matrices = list(gradients)
    spoilt = [matrix for matrix in matrices if bool(gradients[matrix].isnan().any())]
    dead = [matrix for matrix in _dead(asked, matrices, gradients) if matrix not in spoilt]
    moving = [matrix for matrix in dead if _moves(asked, [matrix])] if _moves(asked, dead) else []
    cut_off = [matrix for matrix in moving if not bool(gradients[matrix].any())]
    dead = [matrix for matrix in dead if matrix not in moving]
    chosen_later = alive_with_other_weights(asked, matrices, dead) if dead else []
    lost = [matrix for matrix in dead if matrix not in chosen_later]
    lost = dead_in_longer_ones(asked, matrices, lost) if lost else []
    frozen = [matrix for matrix in lost if matrix.name in model.frozen]
    if lost := [matrix for matrix in lost if matrix not in frozen]:
        return _of_the_lost(asked, lost, matrices)
    learning = [matrix for matrix in cut_off if matrix.name not in model.frozen]
    doubts = {NAN_GRADIENT: spoilt, FROZEN: frozen, NOT_CHOSEN: chosen_later, CUT_OFF: learning}
    for doubt, found in doubts.items():
        if found:
            outcome = unsure(doubt, **_named(found, found, matrices))
            # where fp64 gives NaN the same is asked in fp32
            return replace(outcome, difference=math.nan) if doubt is NAN_GRADIENT else outcome
    return passes(f"outputs depend on each of {len(matrices)} matrices of weights")


def _of_the_lost(asked: Asked, lost: list[Matrix], matrices: list[Matrix]) -> Outcome:
    """The outcome of matrices on which no output depends: a failure where their modules are called,
    or alone of their list are not."""
    called = _with_graph(asked)[1].keys()
    handed_on = _handed_on(asked, lost)
    kinds = {_of_any_number(name) for name in called}
    used = [m for m in lost if m.owner in called and m not in handed_on][::-1]  # the last first
    left_out = [m for m in lost if m.owner not in called and _of_any_number(m.owner) in kinds]
    if used and not left_out and all(_is_chosen_from(asked, matrix) for matrix in used):
        return unsure(CHOSEN_FROM, length=_longer(asked), **_named(used, lost, matrices))
    if failing := left_out or used:
        about = {"is_left_out": bool(left_out), **_named(failing, lost, matrices)}
        return fails(LEFT_OUT, THROWN_AWAY, **about)
    if handed_on:
        return unsure(HANDED_ON, **_named(handed_on, lost, matrices))
    return unsure(NEVER_CALLED, **_named(lost, lost, matrices))


def _is_chosen_from(asked: Asked, matrix: Matrix) -> bool:
    """Whether what the owner of a matrix makes leads to a choice, as that of keys which an indexer
    scores: no gradient comes through, and of few all are chosen. Or nothing is taken of it, as of
    places that are too few to be made one."""
    assert asked.model.module is not None
    part = dict(asked.model.module.named_modules())[matrix.owner]
    made = set[int]()
    with contextlib.suppress(*RAISED):  # a foreign model under a dispatch mode
        for n, step in enumerate(recorded(asked.model, asked.pair(5, 9))):
            if part in step.modules or made & {*step.inputs}:
                made.add(n)
                if CHOOSING.fullmatch(step.name) or not step.value.numel():
                    return True
    return False


# Gradients -----------------------------------------------------------------------------------


def gradients_of_matrices(asked: Asked) -> dict[Matrix, Tensor]:
    """The gradient of all outputs towards each matrix of the model, taken once."""
    if "gradients of matrices" not in asked.shared:
        matrices = list(_matrices(asked))
        asked.shared["gradients of matrices"] = _gradients_of_all_outputs(asked, matrices)
    found: dict[Matrix, Tensor] = asked.shared["gradients of matrices"]
    return found


def _gradients_of_all_outputs(asked: Asked, matrices: Sequence[Matrix]) -> dict[Matrix, Tensor]:
    """Of the logits, and where these have none towards a matrix, of what else the model gives."""
    logits, outputs = _with_graph(asked)
    found = _gradients(_weighed(logits[asked.real]), matrices)
    others = [part for part in _numbers_in(outputs.get("", ())) if part.requires_grad]
    if len(others) > 1 and (dead := _dead(asked, matrices, found)):
        found |= _gradients(_sum_of(others), dead)
    return found


def _handed_on(asked: Asked, matrices: Sequence[Matrix]) -> list[Matrix]:
    """The matrices on which something depends that a module gives beside its first result."""
    _, outputs = _with_graph(asked)
    others = [part for given in outputs.values() for part in [*_numbers_in(given)][1:]]
    if not (others := [part for part in others if part.requires_grad]):
        return []
    dead = _dead(asked, matrices, _gradients(_sum_of(others), matrices))
    return [matrix for matrix in matrices if matrix not in dead]


def _with_graph(asked: Asked) -> tuple[Tensor, dict[str, Any]]:
    """The logits, and what each module gives, by its name, with the graph of their gradients."""
    assert asked.model.module is not None
    with torch.enable_grad(), outputs_of(asked.model.module) as outputs:
        logits = asked.model.ask(*asked.ids)
    if not logits.requires_grad:
        raise Judged(unsure(NO_GRADIENTS))
    return logits, outputs


def _longer(asked: Asked) -> int:
    """Symbols of the sequences that are asked of what moves nothing in short ones."""
    limit = asked.facts.max_length or math.inf
    return int(max(asked.setting.length, min(LONGER, limit - 4)))


def dead_in_longer_ones(
    asked: Asked, matrices: Sequence[Matrix], dead: list[Matrix]
) -> list[Matrix]:
    """Of matrices on which no output depends those of which that is so in longer sequences too:
    what compresses many places into one has nothing to do in short ones."""
    length = _longer(asked)
    if length <= asked.setting.length:
        return dead
    src, tgt_in, _ = asked.pair(length, length)
    try:
        with torch.enable_grad():
            logits = asked.model.ask(src, tgt_in)
    except NoAnswer:
        return dead
    looked_at = [*matrices, *(each for each in dead if each not in matrices)]
    still = _dead(asked, looked_at, _gradients(_weighed(logits), looked_at))
    return [matrix for matrix in dead if matrix in still]


def _sum_of(outputs: Sequence[Tensor]) -> Tensor:
    return sum(map(_weighed, outputs), torch.zeros(()))


def _weighed(outputs: Tensor) -> Tensor:
    """The sum of outputs, each weighed with a random number; what is ruled out does not count."""
    random = torch.Generator().manual_seed(0)
    noise = torch.randn(outputs.shape, generator=random).to(outputs)
    return torch.where(outputs.detach().isfinite(), outputs * noise, 0.0).sum().cpu()


def _gradients(value: Tensor, matrices: Sequence[Matrix]) -> dict[Matrix, Tensor]:
    """Of a number with respect to matrices."""
    parameters = [matrix.parameter for matrix in matrices]
    with torch.enable_grad():
        found = torch.autograd.grad(
            value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    return {matrix: matrix.of(each) for matrix, each in zip(matrices, found, strict=True)}


def _dead(
    asked: Asked, matrices: Sequence[Matrix], gradients: Mapping[Matrix, Tensor]
) -> list[Matrix]:
    """The matrices whose gradient is, where it is a number, 0 but for rounding."""
    sizes = {matrix: largest(gradients[matrix].nan_to_num(0.0)) for matrix in matrices}
    least = tolerances.LOGITS[asked.dtype] * max(sizes.values(), default=0.0)
    return [matrix for matrix in matrices if sizes[matrix] <= least]


def _numbers_in(answer: Any) -> Iterator[Tensor]:
    """Every tensor of numbers in what a model gives."""
    if isinstance(answer, Tensor):
        yield from (answer,) if answer.is_floating_point() else ()
    elif isinstance(answer, dict):
        yield from (found for part in answer.values() for found in _numbers_in(part))
    elif isinstance(answer, tuple | list):
        yield from (found for part in answer for found in _numbers_in(part))


# One module for several ----------------------------------------------------------------------

SHARED = WEIGHTS.doubt(
    "shared",
    when="a module stands under several names of the module that holds it",
    words="{names} are one module, with one set of weights",
    remedy="[layer] * n makes such, and so does a module that is made once and named twice: make "
    "each by itself, unless they are shared on purpose as in ALBERT",
)


@WEIGHTS.part("a module for each name")
def a_module_for_each_name(asked: Asked) -> Outcome:
    """No module with weights has two names in the module that holds it. Embeddings may, because
    they are tied on purpose; a layer that is called several times has one name."""
    if asked.model.module is None:
        return does_not_apply("a function shows no weights")
    names: dict[tuple[str, nn.Module], list[str]] = {}
    for name, part in asked.model.module.named_modules(remove_duplicate=False):
        if any(not isinstance(owner, nn.Embedding) for owner in _owners(part)):
            names.setdefault((name.rpartition(".")[0], part), []).append(name)
    if same := next((each for each in names.values() if len(each) > 1), None):
        return unsure(SHARED, names=f"{', '.join(same[:-1])} and {same[-1]}")
    return passes("every module that holds weights has one name")


def _owners(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of a module that hold parameters themselves."""
    return (
        part for part in module.modules() if next(part.parameters(recurse=False), None) is not None
    )


# Other weights -------------------------------------------------------------------------------


def _moves(asked: Asked, matrices: Sequence[Matrix]) -> bool:
    """Whether some output is another where matrices hold other numbers."""
    if not matrices:
        return False
    with restored(matrix.parameter for matrix in matrices), torch.no_grad():
        for matrix in matrices:
            _draw_anew(matrix, seed=1)
        by = asked.differ(asked.ask(*asked.ids), asked.logits, asked.real)
    return not by <= asked.tolerance


def alive_with_other_weights(
    asked: Asked, matrices: Sequence[Matrix], dead: Sequence[Matrix]
) -> list[Matrix]:
    """Of dead matrices those on which an output depends where all weights are others, and those of
    the same kind as one of them: experts that a router does not choose."""
    still_dead, looked_at = list(dead), [*matrices, *(m for m in dead if m not in matrices)]
    with restored(matrix.parameter for matrix in matrices):
        for seed in range(MOST_DRAWS):
            for matrix in matrices:
                _draw_anew(matrix, seed, is_lively=True)
            gradients = _gradients(_weighed(_with_graph(asked)[0][asked.real]), looked_at)
            here = _dead(asked, looked_at, gradients)
            still_dead = [matrix for matrix in still_dead if matrix in here]
            if not still_dead:
                break
    kinds = {_of_any_number(m.owner) for m in dead if m not in still_dead and m.block is None}
    return [m for m in dead if m not in still_dead or _of_any_number(m.owner) in kinds]


@torch.no_grad()
def _draw_anew(matrix: Matrix, seed: int, is_lively: bool = False) -> None:
    """Give a matrix random numbers about as large as its own; is_lively: or as those of a trained
    one, because tiny ones leave all weights of an attention alike, whatever its scores are."""
    part = matrix.of(matrix.parameter.data)
    random = torch.Generator().manual_seed(seed + part.numel())
    noise = torch.randn(part.shape, generator=random, dtype=torch.float64)
    own, usual = float(part.float().square().mean().sqrt()), part.shape[-1] ** -0.5
    size = max(own, usual) if is_lively else own or usual
    part.copy_((noise * size).to(part))


# Names ---------------------------------------------------------------------------------------


def _matrices(asked: Asked) -> Iterator[Matrix]:
    """Every matrix of a model; of a fused projection its queries, keys and values."""
    module = asked.model.module
    assert module is not None
    modules = dict(module.named_modules())
    for name, parameter in module.named_parameters():
        if sum(size > 1 for size in parameter.shape) < 2 or not parameter.is_floating_point():
            continue
        owner = name.rpartition(".")[0]
        part, shape = modules[owner], parameter.shape
        is_fused = isinstance(part, nn.MultiheadAttention) and name.endswith("in_proj_weight")
        is_fused |= isinstance(part, nn.Linear) and shape[0] == 3 * shape[1]
        is_fused &= shape[0] != asked.facts.vocabulary_size
        for third in range(3) if is_fused else (None,):
            yield Matrix(name, owner, parameter, third)


def _of_any_number(name: str) -> str:
    """The name of a module without numbers, which the same modules of other layers share."""
    return re.sub(r"\d+", "*", name)


def _named(
    found: Sequence[Matrix], dead: Sequence[Matrix], matrices: Sequence[Matrix]
) -> dict[str, Any]:
    """The largest module around the first matrix that is found of which all matrices are dead, how
    many it has, and how many more such modules there are, in words."""
    alive = [matrix for matrix in matrices if matrix not in dead]
    groups: dict[str, int] = {}
    for matrix in found:
        steps = matrix.name.split(".")
        prefixes = (".".join(steps[:n]) for n in range(1, len(steps) + 1))
        whole = (p for p in prefixes if not any(f"{m.name}.".startswith(f"{p}.") for m in alive))
        itself = matrix.name
        if matrix.third is not None:
            itself = f"the {('queries', 'keys', 'values')[matrix.third]} of {matrix.name}"
        name = next(whole, itself)
        inside = (m for m in dead if f"{m.name}.".startswith(f"{name}."))
        groups[name] = max(1, sum(1 for _ in inside))
    first, *more = groups
    return {
        "where": re.sub(r"^model\.(?=.)", "", first),
        "count": f"{groups[first]} {'matrices' if groups[first] > 1 else 'matrix'}",
        "others": f" ({len(more)} more like it)" if more else "",
    }
