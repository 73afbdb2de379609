"""`python -m penstock.bench`: the same as `penstock bench`."""

from penstock.cli.bench import app

app()
