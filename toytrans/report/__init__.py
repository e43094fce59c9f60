"""One self-contained HTML page of runs, masks, attention and checks.

    run directories -> views -> sections -> page

Each function in `sections` makes one part of the page. `charts` draws curves as SVG. `page` puts
the parts, the style and the script into one document that loads nothing.
"""
