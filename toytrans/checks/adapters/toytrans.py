"""toytrans' own models and runs. No other module of `checks` knows them."""

import copy
from typing import Any

import torch
from torch import Tensor

from toytrans.checks.subject import Adapter, Facts, Symbols
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
    return isinstance(model, Run)


def of_run(run: Run) -> Adapter:
    return of_model(run.model, run.config, run.vocabulary, str(run.path))


def of_model(model: Seq2Seq, config: Settings, vocabulary: Vocabulary, name: str) -> Adapter:
    """A toytrans model with what it learns from, faults included. One that its user wrote is asked
    as any model is."""
    made: Any = copy.deepcopy(model).cpu()
    ours = made if isinstance(made, Transformer) else None
    objective = objective_of(config.fault)

    def batch(pairs: Symbols) -> tuple[Tensor, Tensor, Tensor]:
        sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
        plain = make_batch(Pairs(*pad_rows(sources), *pad_rows(targets)), config.source_bos)
        learned_from = objective.prepare(plain)
        return learned_from.src, learned_from.tgt_in, learned_from.tgt_out

    def loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
        return objective.mean(logits, Batch(tgt_out, tgt_out, tgt_out))

    facts = Facts(
        name=", ".join(filter(None, (name, fault_remark(config.fault)))),
        pad_id=PAD_ID,
        vocabulary_size=len(vocabulary),
        source_pad_id=PAD_ID if ours else None,
        start_id=BOS_ID,
        eos_id=EOS_ID,
        decoding_start=BOS_ID,
        max_length=made.settings.max_length,
        is_textbook=ours is not None,
    )
    return Own(made, facts, loss=loss, batch=batch)


class Own(Adapter):
    """A model that decodes from a state of its own."""

    def step(self, src: Tensor, tgt_in: Tensor, positions: bool = True) -> Tensor:
        model: Any = self.module
        if not model.decodes_from_a_state:
            return super().step(src, tgt_in)
        state = model.start_decoding(src, tgt_in.shape[1])
        return torch.stack([state.next_logits(tokens) for tokens in tgt_in.unbind(1)], 1)
