"""The command ``penstock``: a file per noun, each imported only when its command runs.

``main.py`` is the entry: it picks the noun, runs it and turns whatever goes wrong into one sentence on stderr and an exit
code (``failures.py``). ``options.py`` has the options that several nouns share, ``output.py`` tables and JSON,
``progress.py`` the bars. Commands speak to a broker through ``penstock.client`` alone; only ``serve`` starts one.
"""
