"""A real broker for tests: for users' tests as well as Penstock's own.

``plugin.py`` has the pytest fixtures, ``broker.py`` a broker in a thread of the test process, ``process.py`` one in a separate
process that can be killed, ``disk.py`` a disk with power failures. Nothing is imported here, because pytest loads the plugin in
every run.
"""
