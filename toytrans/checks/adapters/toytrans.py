"""toytrans' own models and runs. No other module of `checks` knows them."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks.beam_scores import Hypotheses
from toytrans.checks.facts import PROMISES, Facts
from toytrans.checks.ids import Symbols
from toytrans.checks.model import Adapter
from toytrans.checks.outcome import Judged, does_not_apply
from toytrans.config.faults import fault_remark
from toytrans.config.schema import Settings
from toytrans.data.batches import Batch, make_batch
from toytrans.data.pairs import Pairs, pad_rows
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from toytrans.training.optimization import objective_of
from toytrans.training.run import Run


def is_run(model: Any) -> bool:
    """Whether a model is a run that `toytrans.load` gave."""
    return isinstance(model, Run)


def of_run(run: Run, device: torch.device | None = None) -> Adapter:
    """The adapter of the model of a run."""
    return of_model(run.model, run.settings, run.vocabulary, str(run.path), device)


def of_model(
    model: Seq2Seq,
    config: Settings,
    vocabulary: Vocabulary,
    name: str,
    device: torch.device | None = None,
) -> Adapter:
    """A toytrans model with what it learns from, faults included. One that its user wrote is asked
    as any model is."""
    made: Any = copy.deepcopy(model)
    objective = objective_of(config.fault)

    def batch(pairs: Symbols) -> tuple[Tensor, Tensor, Tensor]:
        sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
        plain = make_batch(Pairs(*pad_rows(sources), *pad_rows(targets)), config.model.source_bos)
        learned_from = objective.prepare(plain)
        return learned_from.src, learned_from.tgt_in, learned_from.tgt_out

    def loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
        return objective.mean(logits, Batch(tgt_out, tgt_out, tgt_out))

    transformer = made if isinstance(made, Transformer) else None
    about: dict[str, Any] = {}
    if transformer is not None:
        width = transformer.settings.d_model // transformer.settings.n_heads
        meant = {"scale": width**-0.5, "promises": frozenset(PROMISES)}
        about = {"source_pad_id": PAD_ID, **meant, "said": meant}
    facts = Facts(
        name=", ".join(filter(None, (name, fault_remark(config.fault)))),
        pad_id=PAD_ID,
        vocabulary_size=len(vocabulary),
        start_id=BOS_ID,
        eos_id=EOS_ID,
        decoding_start=BOS_ID,
        max_length=made.settings.max_length,
        **about,
    )
    adapter = OwnModel if transformer is None else OurTransformer
    return adapter(made, facts, loss=loss, batch=batch, device=device)


class OwnModel(Adapter):
    """A model of toytrans' interface, which a user may have written. It decodes from a state of its
    own."""

    def state(self, src: Tensor, places: int, beams: int) -> Any:
        """A state of the model's own that decodes step by step."""
        model: Any = self.module
        if not model.decodes_from_a_state:
            raise Judged(does_not_apply("each step reads all tokens anew, so no state is kept"))
        return model.start_decoding(src, places, beams)

    def step(self, src: Tensor, tgt_in: Tensor, positions: bool = True) -> Tensor | Hypotheses:
        """The logits of each step of such a state, for tokens that are given."""
        model: Any = self.module
        if not model.decodes_from_a_state:
            return super().step(src, tgt_in)
        state = model.start_decoding(src, tgt_in.shape[1])
        return torch.stack([state.next_logits(tokens) for tokens in tgt_in.unbind(1)], 1)


class OurTransformer(OwnModel):
    """toytrans' own transformer. Whatever it raises is an error of this package; it has no dropout
    but that whose rates are zero already, no buffers that change, and no branches that start
    closed."""

    may_raise = ()

    def foreign(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call it as it is: an exception is a fault of this package."""
        return function(*given)

    def randomize_zero_weights(self, module: nn.Module) -> tuple[nn.Parameter, ...]:
        """Nothing, because no branch of ours starts closed."""
        return ()

    def without_dropout(self) -> AbstractContextManager[None]:
        """Nothing to do, because rates of dropout are zero in a copy."""
        return nullcontext()
