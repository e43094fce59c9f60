"""What a model writes for each pair that is measured, as lines of JSON for other programs."""

import json
from typing import Any

import torch
from torch import Tensor

from toytrans.data.batches import Batch
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import BOS_ID, PAD_ID, Vocabulary


class Outputs:
    """Collects the outputs of an evaluation, which calls it for each batch.

    lines: by the index of a pair, what its line holds:
    source, target, output: symbols with blanks between them.
    right: whether the output is the target. score: the log-probability of the output in nats,
    divided by its tokens, the end among them.
    """

    def __init__(self, model: Seq2Seq, vocabulary: Vocabulary) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.lines: dict[int, dict[str, Any]] = {}

    def __call__(self, rows: Tensor, batch: Batch, tokens: Tensor, right: Tensor) -> None:
        """Keep the outputs (B, L) of a batch. rows (B,): the indices of its pairs."""
        sides = {"source": batch.src, "target": batch.tgt_out, "output": tokens}
        texts = {name: [self._text(ids) for ids in side.tolist()] for name, side in sides.items()}
        scores = score(self.model, batch.src, tokens)
        for k, row in enumerate(rows.tolist()):
            line: dict[str, Any] = {name: texts[name][k] for name in sides}
            self.lines[row] = line | {"right": bool(right[k]), "score": float(scores[k])}

    def _text(self, ids: list[int]) -> str:
        return " ".join(self.vocabulary.decode(ids))

    def as_jsonl(self) -> bytes:
        """A line for each pair, in the order of the pairs."""
        lines = (json.dumps(self.lines[row], ensure_ascii=False) for row in sorted(self.lines))
        return "".join(f"{line}\n" for line in lines).encode()


@torch.no_grad()
def score(model: Seq2Seq, src: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of outputs (B, L) in nats, divided by their tokens: (B,)."""
    start = tokens.new_full((len(tokens), 1), BOS_ID)
    tgt_in = torch.cat((start, tokens[:, :-1]), 1)
    real = tokens != PAD_ID
    log_probs = model(src, tgt_in).log_softmax(-1, dtype=torch.float64)  # (B, L, V)
    chosen = log_probs.gather(-1, tokens[..., None])[..., 0].where(real, 0.0)
    return chosen.sum(1) / real.sum(1).clamp(min=1)
