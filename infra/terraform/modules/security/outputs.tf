output "security_group_id" {
  description = "Security group of the brokers."
  value       = aws_security_group.brokers.id
}

output "ingress" {
  description = "Allowed connections: rule, range, first and last port."
  value = {
    for rule, what in local.in_rules : rule => { cidr = what.cidr, first_port = what.ports.first, last_port = what.ports.last }
  }
}

output "https_egress" {
  description = "Ranges that hosts reach by HTTPS in addition to S3."
  value       = { for name, rule in aws_vpc_security_group_egress_rule.https : name => rule.cidr_ipv4 }
}

output "secret_arns" {
  description = "ARNs of the places for secrets."
  value       = { for what, secret in aws_secretsmanager_secret.this : what => secret.arn }
}

output "secret_names" {
  description = "Names of the places for secrets."
  value       = { for what, secret in aws_secretsmanager_secret.this : what => secret.name }
}

output "node_ingress" {
  description = "Ports that are open to other nodes alone; null without a listener of their own."
  value       = one([for what, rule in aws_vpc_security_group_ingress_rule.brokers : { first_port = rule.from_port, last_port = rule.to_port, group = rule.referenced_security_group_id } if what == "nodes"])
}

output "ingress_groups" {
  description = "Allowed connections of security groups: rule, group, first and last port."
  value = {
    for rule, what in local.in_groups : rule => { id = what.id, first_port = what.ports.first, last_port = what.ports.last }
  }
}

output "dns_egress" {
  description = "DNS servers that hosts reach, by protocol and name."
  value       = { for name, rule in aws_vpc_security_group_egress_rule.dns : name => rule.cidr_ipv4 }
}
