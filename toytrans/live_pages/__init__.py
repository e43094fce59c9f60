"""`toytrans live`: one HTML file in which a transformer runs, to be taken apart by hand.

    run -> what its page holds (payload.py) -> the page (page.py and templates/)
    shipped configs -> what there is to learn (learning.py) -> the page in which a model learns

model.js is the transformer in plain JavaScript, and templates/learn/ is its training. The screen
shows what they compute, and nothing else: no number on a page was computed in Python but those of
PyTorch, which prove the others at the foot of a run's page.
"""
