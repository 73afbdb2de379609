"""The load generator behind `penstock bench`.

What may live here: code that drives a broker from the outside, over sockets, and measures it. Nothing here imports the broker, so the
same tool measures any broker that speaks the Kafka protocol, and a fault in the broker's codec cannot hide itself from the measurement.
"""
