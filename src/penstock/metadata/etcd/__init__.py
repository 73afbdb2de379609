"""The agreed state in etcd, behind the same port as the store of a broker that is alone.

``endpoints.py`` finds a member that answers, ``watch.py`` follows all changes without losing one, ``store.py`` is the store.
"""

import os

# Before any module here imports grpc, whose core writes to stderr by itself: what matters of it is raised as an error anyway.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
