"""Dead letters: records that exhausted their attempts, looked at, counted, sent back to their topic, or given up.

The dead letters of topic ``orders`` lie in topic ``dlq.orders``. One is open while the group ``penstock.redrive`` has not
finished it there, so what was redriven or purged is finished for good, and doing it again goes on where it stopped.
``dead_letters.py`` is the door, ``letters.py`` what a dead letter is and which are meant, ``scan.py`` goes over the open ones,
``jobs.py`` works on them, a bounded piece at a time.
"""
