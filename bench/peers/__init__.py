"""One module for each system in the comparison; `base.py` says what such a module offers."""
