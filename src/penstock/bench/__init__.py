"""The load generator of `penstock bench`.

What may live here: code that drives a running broker from outside, over sockets, and measures it. Topics are created, filled and counted
through `penstock.client`; the load itself is prepared bytes over plain sockets, so that the broker is measured and not a client. Any
broker that speaks the Kafka protocol can be measured. Comparisons with other systems are in `bench/` of the repository.
"""
