"""Does the mask really work, and do loss, labels and layers? Proofs that pass or fail.

Each proof changes what must not matter and looks for a difference, or changes what must matter
and looks for none. `outputs`, `reach` and `labels` look from outside, at logits and loss;
`internals` and `decoding` look inside.
"""

from toytrans.insight.proofs.plan import PROOFS, check, check_own

__all__ = ["PROOFS", "check", "check_own"]
