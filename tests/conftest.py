"""What holds for every test: time is no property of the code under test on a machine that others share."""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background of a shell inherits this, and so would every program that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
