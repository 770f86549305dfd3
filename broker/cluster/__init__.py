"""The other nodes: heartbeats, who is alive, and how fresh what this node knows is.

Nothing here decides anything: decisions are entries of the metadata log. Peers make them quick.
"""
