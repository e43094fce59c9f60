"""Decoding: greedy and beam search. PAD and BOS are never chosen."""

from toytrans.model.decoding.searches import Decoded, search, token_limits

__all__ = ["Decoded", "search", "token_limits"]
