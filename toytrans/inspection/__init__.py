"""Look inside a model: masks, weights, every tensor of a pass, as tables."""
