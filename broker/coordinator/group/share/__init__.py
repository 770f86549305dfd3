"""The members of share groups (KIP-932)."""
