"""Do the masks really work, and do loss, labels and layers? Checks of any model.

A check changes what must not matter and looks for a difference, or changes what must matter and
looks for none. This package knows torch alone; `adapters.toytrans` knows our own models.
"""
