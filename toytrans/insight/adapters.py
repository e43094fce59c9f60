"""The models that the proofs know how to ask; see `proofs.adapters`."""

from toytrans.insight.proofs.adapters import TorchTransformer
from toytrans.insight.proofs.subject import padded

__all__ = ["TorchTransformer", "padded"]
