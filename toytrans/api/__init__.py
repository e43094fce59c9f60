"""toytrans in Python. `toytrans` itself exports what users need of it."""
