"""Lakes without JARs: records and rows as Parquet files, committed once for each batch of a query.

Tasks write Parquet files into a hidden folder of the lake; the driver makes them part of the table in one commit that remembers the query
and the batch, so that a batch that comes again adds nothing. Three formats share all but that commit: plain Parquet, Delta
(``deltalake``) and Iceberg (``pyiceberg``).

=================  ====================================================================================
``formats.py``     the three formats, and what can go wrong
``layout.py``      which columns a lake has, and in which folder a row lies
``store.py``       the files of a lake, on a local disk or in an object store
``task_files.py``  what a task writes, in bounded memory
``manifests.py``   what a query committed last; how a commit that a crash interrupted is finished
``lake.py``        the lake: prepare, commit, abort, ranges; ``open_lake``
``parquet.py``     the commit of a lake without a table format
``delta.py``       of a Delta table
``iceberg.py``     of an Iceberg table
``reading.py``     splits of a lake, read in the order of their offsets
``tier.py``        the lake behind a topic, for ``format("penstock")``
``datasource.py``  ``format("penstock-lake")``, to write and to read
=================  ====================================================================================
"""

from penstock.spark.lake.formats import LakeError, LakeFormat

__all__ = ["LakeError", "LakeFormat"]
