output "settings" {
  description = "Settings of the brokers that belong to it: the further listener, the addresses for its clients, and the idle time after which the broker closes a connection, which is before AWS drops it (350 s)."
  value = {
    "extra.listeners"            = "LINK://0.0.0.0:${var.target_port}"
    "extra.advertised.listeners" = "LINK://${local.advertised}:{${var.first_port}+node.id}"
    "connections.max.idle.ms"    = 300000
  }
}

output "client" {
  description = "Inputs of module client_endpoint, for clients of an account that is allowed: the endpoint service (null without allowed_principals), the domain, the racks that have names in it (none where one name leads to all), ports."
  value = {
    service_name = one(aws_vpc_endpoint_service.this[*].service_name)
    domain       = var.domain
    racks        = local.is_zonal ? sort(keys(local.racks)) : []
    ports        = { bootstrap = var.bootstrap_port, first = var.first_port, last = local.last_port }
  }
}

output "bootstrap_servers" {
  description = "bootstrap.servers of these clients."
  value       = "${var.domain}:${var.bootstrap_port}"
}

output "names" {
  description = "Names that clients without PrivateLink need in their DNS, each for a name of the load balancer: the domain, and where zones have names of their own, RACK.DOMAIN."
  value = merge(
    { (var.domain) = aws_lb.this.dns_name },
    local.is_zonal ? { for rack, zone in local.racks : "${rack}.${var.domain}" => "${zone}.${aws_lb.this.dns_name}" } : {},
  )
}

output "listeners" {
  description = "Of each port of the load balancer, the zones' targets: a node's own, or with the bootstrap's port the first node of each host."
  value = merge(
    { for id, node in local.nodes : node.port => [{ slot = node.slot, address = aws_lb_target_group_attachment.node[id].target_id, port = aws_lb_target_group_attachment.node[id].port }] },
    { (var.bootstrap_port) = [for slot, node in local.first_nodes : { slot = slot, address = aws_lb_target_group_attachment.bootstrap[slot].target_id, port = aws_lb_target_group_attachment.bootstrap[slot].port }] },
  )
}

output "alarms" {
  description = "Number of alarms."
  value       = length(aws_cloudwatch_metric_alarm.bootstrap)
}
