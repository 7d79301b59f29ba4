"""`python -m routelaws.accelerated` is the command `routelaws`."""

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small, and waiting threads cost CPU time

from .cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
