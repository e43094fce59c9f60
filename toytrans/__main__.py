"""python -m toytrans"""

from toytrans.cli import main

main()
