"""Print the tables of README and of the guides; ``--write`` puts them into their files."""

import sys

from tools.tables import MARKS, block, write

for file in MARKS:
    if "--write" in sys.argv:
        write(file)
    else:
        print(block(file))
