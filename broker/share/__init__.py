"""Share groups (KIP-932): the records of a partition that consumers of a group take in turns."""
