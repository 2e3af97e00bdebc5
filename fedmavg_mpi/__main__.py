"""``python -m fedmavg_mpi`` is the command ``fedmavg``."""

import sys

from fedmavg_mpi.cli import main

if __name__ == "__main__":
    sys.exit(main())
