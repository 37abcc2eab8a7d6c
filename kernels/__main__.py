"""``./mill`` and ``python -m kernels``, in a checkout."""

import signal
import sys

# Until main() catches it, Ctrl-C ends us without a traceback from the middle of an import.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from kernels.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
