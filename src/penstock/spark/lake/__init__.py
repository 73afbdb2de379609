"""Lakes without JARs: records and rows as Parquet files, committed once for each batch of a query.

Tasks write Parquet files to a hidden folder of the lake. The driver adds them to the table in one commit that stores the query and the
batch, so that a repeated batch adds nothing. The three formats differ only in that commit: plain Parquet, Delta (``deltalake``) and
Iceberg (``pyiceberg``).

=================  ====================================================================================
``formats.py``     the three formats, and the error
``layout.py``      the columns of a lake, and the folder of a row
``store.py``       the files of a lake, on a local disk or in an object store
``task_files.py``  what a task writes, in bounded memory
``manifests.py``   the last commit of each query, with which an interrupted commit is finished
``lake.py``        the lake: prepare, commit, abort; ``open_lake``
``table.py``       what the formats have in common
``parquet.py``     the commit of a lake without a table format
``delta.py``       of a Delta table
``iceberg.py``     of an Iceberg table
``reading.py``     splits of a lake, read in the order of their offsets
``archiving.py``   the group, the checkpoint and the tier of an archive
``replaying.py``   the offsets that a replay copies
``tier.py``        the lake of a topic, for ``format("penstock")``
``datasource.py``  ``format("penstock-lake")``, to write and to read
=================  ====================================================================================
"""

from penstock.spark.lake.formats import LakeError, LakeFormat

__all__ = ["LakeError", "LakeFormat"]
