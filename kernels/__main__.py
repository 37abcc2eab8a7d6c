"""``./mill`` and ``python -m kernels``, in a checkout."""

import sys

from kernels.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
