"""``python -m penstock`` is the command ``penstock``."""

from penstock.cli.main import main

if __name__ == "__main__":
    main()
