"""Record batches as Arrow columns: what Spark reads and writes, without Python code per record.

The format is the one that ``records/records.py`` reads and ``records/builder.py`` writes; tests compare records, errors and
bytes. Pure functions on NumPy and pyarrow, which only the ``spark`` extra installs: the broker must not import this package.

Reading (``decoder``): the batches of a fetch are opened into one buffer (``opened``) without those of aborted transactions
(``committed``), the starts of their records are found (``starts``, ``lanes``), the fields are read as vectors (``words``) and
copied into columns (``columns``, ``headers``). Writing (``encoder``): varints as vectors (``varbytes``),
and all pieces put in order by Arrow (``pieces``). Which partition a key belongs to: ``partitions``.
"""

from penstock.records.columnar.decoder import COLUMNS, SCHEMA, decode
from penstock.records.columnar.encoder import encode
from penstock.records.columnar.partitions import partition_for_keys

__all__ = ["COLUMNS", "SCHEMA", "decode", "encode", "partition_for_keys"]
