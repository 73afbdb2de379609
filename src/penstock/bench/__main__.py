"""`python -m penstock.bench`: the same as `penstock bench`."""

import sys

from penstock.cli.main import run

sys.exit(run(["bench", *sys.argv[1:]]))
