"""Encryption at rest: a disk that encrypts what another disk stores, the keys for it, and a store that seals secret values.

The log does not know it: :class:`penstock.encryption.disk.EncryptedDisk` is a :class:`penstock.ports.Disk` with the same names,
sizes and positions. :mod:`penstock.encryption.directory` opens it for a data directory, and refuses a missing or wrong key.

What is encrypted: segments, and every small file that is written with ``write_atomic`` (snapshots, notes, checkpoints). Names of files,
indexes (offsets, positions, timestamps) and ``node.json`` can be read without a key.
"""
