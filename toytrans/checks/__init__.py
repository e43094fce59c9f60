"""Do the masks really work, and do loss, labels and layers? Checks of any model.

A check changes what must not matter and looks for a difference, or changes what must matter and
looks for none. `run.check` makes batches of random symbols, asks a copy of the model for its logits
in each mode and precision, and hands each batch to the parts of the checks in `rules`. A part gives
an `Outcome`, or changes that must move nothing, which `changes.compare` looks at. `report.Report`
says what came of all of them. This package knows torch alone; `adapters.toytrans` knows our models.
"""
