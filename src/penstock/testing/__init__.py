"""A real broker for tests: yours as well as Penstock's own.

``plugin.py`` has the pytest fixtures, ``broker.py`` a broker in a thread of the test process, ``process.py`` one in a
process of its own that can be killed, ``disk.py`` a disk whose power can fail. Nothing is imported here, because pytest loads the plugin in
every run.
"""
