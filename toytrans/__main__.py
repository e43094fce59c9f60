"""python -m toytrans"""

import os
import sys

# `python -m` lets modules of the working directory come first. None of them is ours, unless the
# package itself lies there.
if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

from toytrans.cli import main

main()
