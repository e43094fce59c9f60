"""Beam search."""

import torch
from torch import Tensor

from toytrans.model.decoding.limits import Decoded, rows_to_keep, token_limits
from toytrans.model.decoding.state import start_decoding
from toytrans.model.transformer import Transformer
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


@torch.no_grad()
def beam_search(
    model: Transformer, src: Tensor, width: int, alpha: float = 1.0, growth: int = 2
) -> Decoded:
    """The best of the hypotheses that `width` beams find, for sources (B, S).

    A hypothesis scores its log-probability / length^alpha, EOS counted in the length. A source
    is done when no open beam can overtake its best ended hypothesis any more, even if all
    further tokens were certain. Where none has ended at the limit, the best open beam is taken.
    """
    limits = token_limits(src, growth, model.config.max_length)
    longest = int(limits.max()) if len(src) else 0
    state = start_decoding(model, src, longest, width)
    like = torch.empty(0, dtype=model.dtype, device=src.device)
    beams = _Beams(len(src), width, longest, alpha, like)
    newest = src.new_full((len(src), width), BOS_ID)
    for place in range(longest):
        log_probs = state.next_logits(newest).log_softmax(-1)
        log_probs[..., :EOS_ID] = -torch.inf  # neither PAD nor BOS
        parents, newest = beams.advance(log_probs, place, limits)
        if bool(beams.done.all()):
            break
        if (kept := rows_to_keep(~beams.done)) is not None:
            beams.keep(kept)
            parents, newest = parents[kept], newest[kept]
            state.select_sources(kept)
        state.select_beams(parents)
    return beams.best()


class _Beams:
    """The open beams of the sources still searched, and the best ended hypothesis of each."""

    def __init__(self, sources: int, width: int, longest: int, alpha: float, like: Tensor) -> None:
        device = like.device
        self.width, self.alpha = width, alpha
        self.sources = torch.arange(sources, device=device)  # still here, (A,)
        self.done = torch.zeros(sources, dtype=torch.bool, device=device)  # (A,)
        self.log_prob = like.new_full((sources, width), -torch.inf)
        self.log_prob[:, 0] = 0  # all beams start equal; the others are switched off
        self.history = torch.full((sources, width, longest), PAD_ID, device=device)
        self.best_score = like.new_full((sources,), -torch.inf)
        self.best_tokens = torch.full((sources, longest), PAD_ID, device=device)
        self.best_length = 0  # of the longest best hypothesis so far

    def advance(self, log_probs: Tensor, place: int, limits: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (A, W, V) of the next tokens -> which beam of its source each open
        beam goes on from, and with which token: both (A, W)."""
        vocabulary = log_probs.shape[-1]
        totals = self.log_prob[..., None] + log_probs
        best = totals.flatten(1).topk(min(2 * self.width, self.width * vocabulary), 1)
        parent, token = best.indices // vocabulary, best.indices % vocabulary
        last = limits[self.sources] == place + 1
        self._end(best.values, parent, token, place, last)
        order = best.values.masked_fill(token == EOS_ID, -torch.inf).topk(self.width, 1).indices
        parent, token = parent.gather(1, order), token.gather(1, order)
        log_prob = best.values.gather(1, order)
        past = self.history[:, :, :place]
        self.history[:, :, :place] = past.gather(1, parent[..., None].expand_as(past))
        self.history[:, :, place] = token
        self.log_prob = log_prob.masked_fill(token == EOS_ID, -torch.inf)
        self.done |= last | self._decided(limits)
        self.log_prob[self.done] = -torch.inf
        return parent, token

    def keep(self, kept: Tensor) -> None:
        """Keep some sources (A',), in that order."""
        self.sources, self.history = self.sources[kept], self.history[kept]
        self.log_prob, self.done = self.log_prob[kept], self.done[kept]

    def best(self) -> Decoded:
        return Decoded(self.best_tokens[:, : self.best_length], self.best_score)

    def _end(self, totals: Tensor, parent: Tensor, token: Tensor, place: int, last: Tensor) -> None:
        """Record candidates that ended, and open ones at the limit if nothing has ended."""
        eos = token == EOS_ID
        cut_off = last & ~eos.any(1) & self.best_score[self.sources].isinf()
        scores = (totals / (place + 1) ** self.alpha).masked_fill(
            ~(eos | cut_off[:, None]), -torch.inf
        )
        score, pick = scores.max(1)
        better = (score > self.best_score[self.sources]).nonzero()[:, 0]
        sources, pick = self.sources[better], pick[better]
        tokens = self.history[better, parent[better, pick]]
        tokens[:, place] = token[better, pick]
        self.best_score[sources] = score[better]
        self.best_tokens[sources] = tokens
        if len(sources):
            self.best_length = place + 1

    def _decided(self, limits: Tensor) -> Tensor:
        """Sources that no open beam can improve: (A,) bool. An open beam gains no probability;
        the most it can gain is length, up to the limit."""
        bound = self.log_prob.amax(1) / limits[self.sources] ** self.alpha
        return bound <= self.best_score[self.sources]
