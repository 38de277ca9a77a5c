"""Several processes learn together: the same update from more memory and more processors.

`team.py` is what a learner knows about it, `shards.py` the team whose weights lie in pieces; `hosts.py` says what
starts ranks and calls them, `processes.py` does so on this machine (on a cluster `cluster/ray_cluster.py` does),
`rank.py` is what runs there, and `learner.py` is the learner that the loop holds in their place.
"""
