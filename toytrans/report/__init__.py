"""One self-contained HTML page of runs, masks, attention and checks.

    run directories -> RunView -> sections -> page

`runs` reads what there is of each run, damaged or not. Each function in `sections` and `compared`
turns it into one part of the page. `charts` describes plots for Vega-Lite, which draws them in the
browser. `page` puts the parts, the style and the scripts into one document that loads nothing.
"""
