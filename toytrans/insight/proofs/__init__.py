"""Does the mask really work, and do loss, labels and layers? Proofs that pass or fail.

Each proof changes what must not matter and looks for a difference, or changes what must matter
and looks for none. `pads`, `future`, `outputs`, `reach` and `labels` look from outside, at logits
and loss; `internals` and `decoding` look inside.
"""

from toytrans.insight.proofs.entry import check, check_own
from toytrans.insight.proofs.table import PROOFS

__all__ = ["PROOFS", "check", "check_own"]
