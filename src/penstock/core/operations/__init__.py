"""The one door to the core: every operation is authorised, counted, sent to its owner and carried out here.

``door.py`` is the door, ``owners.py`` finds the node that an operation belongs to, ``rights.py`` authorises, and one module per noun has
the handlers. A handler translates between an operation and the rules; the rules themselves are in the other packages of the core.
"""
