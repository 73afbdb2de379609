"""Dead letters: records that failed in all attempts. They can be shown, counted, redriven to their topic, and purged.

The dead letters of topic ``orders`` are the records of topic ``dlq.orders``. A dead letter is open until the group ``penstock.redrive``
has finished it. So redriven and purged ones stay finished, and a redrive that was interrupted continues where it stopped.
``dead_letters.py`` is what gateways use, ``letters.py`` decodes, filters and counts dead letters, ``scan.py`` reads the open ones, and
``jobs.py`` processes them in bounded steps.
"""
