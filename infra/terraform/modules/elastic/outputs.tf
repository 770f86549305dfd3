output "group_name" {
  description = "Auto-scaling group."
  value       = aws_autoscaling_group.hosts.name
}

output "addresses" {
  description = "Address of each slot, whether a host has it or not."
  value       = { for slot, interface in aws_network_interface.slot : slot => interface.private_ip }
}

output "scaling_policy_json" {
  description = "Rights of hosts in addition to the brokers' policy: claim a slot, and report to the group."
  value       = local.scaling_policy_json
}
