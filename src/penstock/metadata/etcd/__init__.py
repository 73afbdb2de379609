"""The agreed state in etcd, with the same interface as the store of a broker that is alone.

``endpoints.py`` finds a member that responds, ``watch.py`` follows all changes without losing one, ``store.py`` is the store.
"""

import os

# Set before grpc is imported, whose core otherwise writes to stderr; what matters is raised as an error anyway.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
