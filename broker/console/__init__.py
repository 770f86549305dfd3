"""The console: web pages about a cluster, served by each node on its HTTP port.

It only reads. Pages are made in the threads of that server; what belongs to the node's event loop
is requested there, in small steps.
"""
