output "bootstrap_servers" {
  description = "bootstrap.servers of Kafka clients."
  value       = local.name == "" ? join(",", [for address in local.addresses : "${address}:${var.port}"]) : "${local.name}:${var.port}"
}

output "target_addresses" {
  description = "Addresses behind the name; none without one."
  value       = var.kind == "dns" ? tolist(aws_route53_record.brokers[0].records) : [for slot, target in aws_lb_target_group_attachment.host : target.target_id]
}

output "checks_reach_hosts" {
  description = "True if the hosts let the load balancer in, by its group; null without one."
  value       = length(aws_lb.this) == 0 ? null : length(aws_vpc_security_group_ingress_rule.brokers) == length(aws_lb.this)
}
