# Clients of other networks (var.private_link). Slots have addresses that stay, with hosts that are fixed
# and with those that come and go, so it is the same for both.

module "private_link" {
  source = "./modules/private_link"
  count  = var.private_link == null ? 0 : 1

  name                     = var.name
  tags                     = local.tags
  bucket                   = module.storage.bucket
  vpc_id                   = module.network.vpc_id
  subnet_ids               = module.network.subnet_ids
  broker_security_group_id = module.security.security_group_id
  hosts                    = { for slot, host in merge(local.slots, local.group_slots) : slot => { address = local.addresses[slot], node_id = host.node_id } }
  nodes_per_host           = local.nodes_per_host
  domain                   = var.private_link.domain
  allowed_principals       = var.private_link.allowed_principals
  acceptance_required      = var.private_link.acceptance_required
  client_cidrs             = var.private_link.client_cidrs
  cross_zone               = var.private_link.cross_zone
  certificate_arn          = var.private_link.certificate_arn
  is_tls                   = local.is_secured
  bootstrap_port           = var.private_link.bootstrap_port
  first_port               = var.private_link.first_port
  target_port              = var.private_link.target_port
  metrics_port             = var.metrics_port
  alarm                    = var.observability
  alarm_topic_arns         = var.alarm_topic_arns
}

output "private_link" {
  description = "For clients of other networks: bootstrap_servers; client, the inputs of module client_endpoint; names, which clients without PrivateLink need in their DNS; listeners, where each port of the load balancer leads. Null without private_link."
  value = var.private_link == null ? null : {
    bootstrap_servers = module.private_link[0].bootstrap_servers
    client            = module.private_link[0].client
    names             = module.private_link[0].names
    listeners         = module.private_link[0].listeners
  }
}
