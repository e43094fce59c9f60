"""`toytrans live RUN`: one HTML file in which the model of a run runs, to be taken apart by hand.

    run -> what the page holds (payload.py) -> the page (page.py and templates/)

model.js is the transformer in plain JavaScript. page.js shows what it computes, and nothing else:
no number on the page was computed in Python but those of PyTorch, which prove the others at its
foot.
"""
