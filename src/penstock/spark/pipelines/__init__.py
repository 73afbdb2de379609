"""Pipelines: small TOML files, and built-in ones, that run on Spark and are remembered while they run.

``model.py`` is what a file may say, ``locate.py`` finds the line of a key, ``loading.py`` turns a file into a ``Pipeline`` or into
errors that name lines, ``plan.py`` builds the queries, ``run.py`` follows them, ``registry.py`` remembers them on disk, and
``builtin/`` holds the ready-made ones. Nothing here imports Spark before a pipeline runs, so files are checked without it.
"""
