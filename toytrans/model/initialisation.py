"""The first weights of a transformer, and how many there are."""

from torch import nn


def initialise(model: nn.Module, width: int) -> None:
    """Draw the weights of a transformer.

    embeddings: normal with standard deviation 1 / sqrt(D), multiplied by sqrt(D) on the way in.
        The first layer's input and, with tied embeddings, the logits start at variance 1.
    matrices: Xavier-uniform; query, key and value each as a D x D matrix of its own
    biases: zero
    position schemes, and the tables of their biases: as their classes have drawn them
    """
    for name, parameter in model.named_parameters():
        if name.startswith(("positions.", "cross_positions.")) or name.endswith("bias_table"):
            continue
        if "in_proj.weight" in name:
            for part in parameter.data.split(width):
                nn.init.xavier_uniform_(part)
        elif "embedding" in name or name == "output.weight":
            nn.init.normal_(parameter, std=width**-0.5)
        elif parameter.dim() == 2:
            nn.init.xavier_uniform_(parameter)
        elif name.endswith(".bias"):
            nn.init.zeros_(parameter)


def count_parameters(model: nn.Module) -> int:
    """Trained numbers, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
