"""One self-contained HTML page of runs, masks, attention and checks.

    run directories -> views -> sections -> page

Each function in `sections` makes one part of the page. `charts` describes plots for Vega-Lite,
which draws them in the browser. `page` puts the parts, the style and the scripts into one document
that loads nothing.
"""
