"""The loss function of a batch's model, and the labels that it is asked with."""

import torch
from torch import Tensor

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.common_causes import LABELS_MISSING
from toytrans.checks.outcome import Judged, not_asked, unsure
from toytrans.errors import UserError


class BatchLoss:
    """The loss of a batch, or of parts of it. labels (B, T), real (B, T): those that are no pads.
    logits (B, T, V): those of the model, of ordinary size where it rules ids out. is_own: whether
    `mean` was the model's own loss, not one that was given.

    Raises Judged where the loss or the labels are not known.
    """

    def __init__(self, asked: Asked) -> None:
        facts, needed = asked.facts, list[str]()
        if asked.tgt_out is None:
            needed = [name for name in ("start_id", "eos_id") if getattr(facts, name) is None]
            needed = needed if asked.model.maker is None else ["batch"]
        if asked.model.given_loss is None:
            why = "needs a loss function" + " and labels" * bool(needed)
            raise Judged(not_asked(why, "loss", *needed))
        if asked.tgt_out is None:
            said = " and ".join(f"{name}=..." for name in needed)
            raise Judged(unsure(LABELS_MISSING, give=tuple(needed), needed=said))
        self.asked, self.labels, self.is_own = asked, asked.tgt_out, False
        self.real = facts.real_labels(self.labels)
        self.logits = self._tame(asked.logits)
        dtypes = {asked.dtype, asked.model.loss(self.logits, self.labels).dtype}
        is_half = bool(dtypes - tolerances.LOGITS.keys())
        self.share = tolerances.LOSS_IN_HALF if is_half else tolerances.LOSS

    def _tame(self, logits: Tensor) -> Tensor:
        """Logits of which those that are ruled out, as -1e9, are ordinary numbers: beside them no
        other would count."""
        is_out = self.asked.as_infinite(logits).isinf()
        random = torch.Generator().manual_seed(self.asked.setting.seed)
        noise = torch.randn(logits.shape, generator=random, dtype=torch.float64).to(logits)
        return self.as_given(torch.where(is_out, noise, logits)) if bool(is_out.any()) else logits

    @property
    def are_probabilities(self) -> bool:
        """Whether the model gives probabilities."""
        given = self.asked.logits[self.real]
        sums = given.sum(-1)
        return bool((given >= 0).all() and ((sums - 1).abs() < tolerances.ONE_SOFTMAX).all())

    @property
    def are_normalized(self) -> bool:
        """Whether it gives probabilities, or their logarithms."""
        given = self.asked.logits[self.real].logsumexp(-1)
        return self.are_probabilities or bool((given.abs() < tolerances.ONE_SOFTMAX).all())

    def as_given(self, logits: Tensor) -> Tensor:
        """Any logits in the form in which the model gives its own."""
        if self.are_probabilities:
            return logits.softmax(-1)
        return logits.log_softmax(-1) if self.are_normalized else logits

    def __call__(self, logits: Tensor, labels: Tensor | None = None) -> float:
        return float(self.asked.model.loss(logits, self.labels if labels is None else labels))

    def twice(self, row: int) -> Tensor:
        """The index of one row, two times: a loss may share its rows out among processes."""
        return torch.tensor([row, row])

    @torch.no_grad()
    def mean(
        self, rows: Tensor | slice = slice(None), places: Tensor | slice = slice(None)
    ) -> float:
        """The loss of some rows and places."""
        asked, labels = self.asked, self.labels[rows][:, places]
        tgt_in = asked.tgt_in[rows, : labels.shape[1]]
        own = asked.model.own_loss(*asked.model.placed(asked.src[rows], tgt_in, labels))
        self.is_own = own is not None
        return self(self.logits[rows][:, places], labels) if own is None else float(own)

    def gradient(self) -> Tensor:
        """With respect to the logits (B, T, V)."""
        return self.gradient_of(self.logits, self.labels)

    def gradient_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """With respect to any logits (B, T, V)."""
        logits = logits.detach().requires_grad_()
        value = self.asked.model.loss(logits, labels)
        if not value.requires_grad:
            raise UserError(
                "the loss function gave a scalar without a gradient; is it detached, or .item()?"
            )
        return torch.autograd.grad(value, logits)[0]

    def tolerance(self, value: float) -> float:
        """Of losses and their gradients; they may be computed in single precision."""
        return self.share * max(abs(value), 1.0)

    def same(self, a: float, b: float) -> bool:
        """Whether two losses are equal, but for rounding."""
        return abs(a - b) <= self.tolerance(a)
