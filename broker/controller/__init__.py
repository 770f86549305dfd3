"""The controller: the node that holds the lease fences the dead, says who leads what, and balances.

What it decides are entries of the metadata log, made by a pure function of the cluster's state and
of what its node sees of the others. Recovery of what the dead left behind is not its business
alone: every survivor takes part.
"""
