"""Replacing the hosts that Terraform made, one after the other, while the cluster serves."""
