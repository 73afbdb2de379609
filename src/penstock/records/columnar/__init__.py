"""Record batches as Arrow columns: what Spark reads and writes, with no Python per record.

The same format as ``records/records.py`` reads and ``records/builder.py`` makes, and the tests hold it to them: the same records, the same
refusals, the same bytes. Pure functions on NumPy and pyarrow, which only the ``spark`` extra installs: nothing that the broker needs
may import this package.

Reading (``decoder``): the batches of a fetch are opened into one buffer (``opened``) without those of aborted transactions
(``committed``), the beginnings of their records are found (``starts``, ``lanes``), the fields read as vectors (``words``) and
taken out as columns (``columns``, ``headers``). Writing (``encoder``): varints as vectors (``varbytes``),
and all pieces put in order by Arrow (``pieces``). Which partition a key belongs to: ``partitions``.
"""

from penstock.records.columnar.decoder import COLUMNS, SCHEMA, decode, decode_each
from penstock.records.columnar.encoder import encode
from penstock.records.columnar.partitions import partition_for_keys

__all__ = ["COLUMNS", "SCHEMA", "decode", "decode_each", "encode", "partition_for_keys"]
