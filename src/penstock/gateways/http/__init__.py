"""HTTP. In this version it answers two questions: is the process alive (``/livez``), and does it take requests (``/readyz``)."""
