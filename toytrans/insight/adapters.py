"""The models that the proofs know how to ask; see `proofs.adapters`."""

from toytrans.insight.proofs.adapters import TorchTransformer
from toytrans.insight.proofs.model_under_test import padded

__all__ = ["TorchTransformer", "padded"]
