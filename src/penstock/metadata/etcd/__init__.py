"""The agreed state in etcd, behind the same port as the store of a broker that is alone.

``endpoints.py`` finds a member that answers, ``watch.py`` follows all changes without losing one, ``store.py`` is the store.
"""
