"""Beam search."""

import torch
from torch import Tensor

from toytrans.data.pairs import longest_of
from toytrans.model.decoding.loop import Decoded, run, token_limits
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


@torch.no_grad()
def beam_search(
    model: Seq2Seq, src: Tensor, target_growth: int = 2, *, width: int, alpha: float = 1.0
) -> Decoded:
    """The best of the hypotheses that `width` beams find, for sources (B, S).

    A hypothesis scores its log-probability / length^alpha, EOS counted in the length. A source
    is done when no open beam can overtake its best ended hypothesis any more, even if all
    further tokens were certain. Where none has ended at the limit, the best open beam is taken.
    """
    limits = token_limits(src, target_growth, model.config.max_length)
    return run(Beams(model, src, limits, width, alpha))


class Beams:
    """Beam search of B sources, one place at a time; see `loop.Search`.

    It holds the open beams of the A sources still searched, and the best ended hypothesis of all.

    limits: (B,), how many tokens each row may become
    """

    def __init__(
        self, model: Seq2Seq, src: Tensor, limits: Tensor, width: int, alpha: float
    ) -> None:
        self.limits, self.width, self.alpha = limits, width, alpha
        self.longest = longest = longest_of(limits)
        sources = len(src)
        self.state = model.start_decoding(src, longest, width)
        self.newest = src.new_full((sources, width), BOS_ID)
        dtype = torch.promote_types(model.dtype, torch.float32)
        like = torch.empty(0, dtype=dtype, device=src.device)
        self.rows = torch.arange(sources, device=src.device)  # which source each row is of, (A,)
        self.done = torch.zeros_like(self.rows, dtype=torch.bool)  # (A,)
        self.log_prob = like.new_full((sources, width), -torch.inf)
        self.log_prob[:, 0].fill_(0)  # all beams start equal; the others are switched off
        self.history = src.new_full((sources, width, longest), PAD_ID)
        self.best_score = like.new_full((sources,), -torch.inf)
        self.best_tokens = src.new_full((sources, longest), PAD_ID)

    @property
    def going(self) -> Tensor:
        return ~self.done

    def step(self) -> None:
        place = self.state.place
        logits = self.state.next_logits(self.newest)
        log_probs = logits.log_softmax(-1, dtype=self.log_prob.dtype)
        log_probs[..., :EOS_ID].fill_(-torch.inf)  # neither PAD nor BOS
        parents, tokens = self.advance(log_probs, place)
        self.newest.copy_(tokens)
        self.state.select_beams(parents)

    def advance(self, log_probs: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities (A, W, V) at a place -> which beam of its source each open beam goes
        on from, and with which token: both (A, W)."""
        vocabulary = log_probs.shape[-1]
        totals = self.log_prob[..., None] + log_probs
        best = totals.flatten(1).topk(min(2 * self.width, self.width * vocabulary), 1)
        parent, token = best.indices // vocabulary, best.indices % vocabulary
        limits = self.limits[self.rows]
        last = limits == place + 1
        self._end(best.values, parent, token, place, last)
        order = best.values.masked_fill(token == EOS_ID, -torch.inf).topk(self.width, 1).indices
        parent, token = parent.gather(1, order), token.gather(1, order)
        log_prob = best.values.gather(1, order)
        past = self.history[:, :, :place]
        self.history[:, :, :place] = past.gather(1, parent[..., None].expand_as(past))
        self.history[:, :, place] = token
        self.log_prob.copy_(log_prob.masked_fill(token == EOS_ID, -torch.inf))
        self.done |= last | self._decided(limits)
        self.log_prob.masked_fill_(self.done[:, None], -torch.inf)
        return parent, token

    def keep(self, kept: Tensor) -> None:
        self.rows, self.history = self.rows[kept], self.history[kept]
        self.log_prob, self.done = self.log_prob[kept], self.done[kept]
        self.newest = self.newest[kept]
        self.state.select_sources(kept)

    def decoded(self) -> Decoded:
        return Decoded(self.best_tokens, self.best_score)

    def _end(self, totals: Tensor, parent: Tensor, token: Tensor, place: int, last: Tensor) -> None:
        """Record candidates that ended, and open ones at the limit if nothing has ended."""
        eos, best = token == EOS_ID, self.best_score[self.rows]
        cut_off = last & ~eos.any(1) & best.isinf()
        scores = (totals / (place + 1) ** self.alpha).masked_fill(
            ~(eos | cut_off[:, None]), -torch.inf
        )
        score, pick = scores.max(1, keepdim=True)  # (A, 1)
        index = parent.gather(1, pick)[..., None].expand(-1, 1, self.longest)
        tokens = self.history.gather(1, index)[:, 0]  # (A, longest)
        tokens[:, place] = token.gather(1, pick)[:, 0]
        better = score[:, 0] > best
        self.best_score[self.rows] = score[:, 0].where(better, best)
        before = self.best_tokens[self.rows]
        self.best_tokens[self.rows] = tokens.where(better[:, None], before)

    def _decided(self, limits: Tensor) -> Tensor:
        """Sources that no open beam can improve: (A,) bool. An open beam gains no probability;
        the most it can gain is length, up to the limit."""
        bound = self.log_prob.amax(1) / limits**self.alpha
        return bound <= self.best_score[self.rows]
