"""``python -m gemmill``: the command line, and the child process of a selftest."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run a command and return its exit status."""
    if sys.argv[1:2] == ["_selftest-child"] and len(sys.argv) in (4, 5):
        # A short-lived child has no use for a BLAS thread pool.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from gemmill.selfcheck import main as selfcheck

        return selfcheck(*sys.argv[2:])
    from gemmill.cli import main as cli

    return int(cli())


if __name__ == "__main__":
    sys.exit(main())
