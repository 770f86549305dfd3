# One group for all brokers. Nothing is open to addresses outside private ranges.

locals {
  in_ports = { kafka = var.kafka_ports, metrics = var.metrics_ports }
  in_rules = merge([
    for what, ports in local.in_ports : {
      for label, cidr in var.client_cidrs : "${what}-${label}" => { what = what, cidr = cidr, ports = ports }
    }
  ]...)
  in_groups = merge([
    for what, ports in local.in_ports : {
      for label, id in var.client_security_group_ids : "${what}-${label}" => { what = what, label = label, id = id, ports = ports }
    }
  ]...)

  # A description that changes is an update of the rule, so each keeps that of earlier releases.
  broker_rules = merge(
    { kafka = { ports = var.kafka_ports, description = "brokers to one another" } },
    var.node_ports == null ? {} : { nodes = { ports = var.node_ports, description = "nodes to one another, by mutual TLS" } },
  )

  dns_rules = merge([for protocol in ["tcp", "udp"] : { for label, cidr in var.dns_cidrs : "${protocol}-${label}" => { protocol = protocol, cidr = cidr } }]...)
}

data "aws_region" "current" {}

data "aws_ec2_managed_prefix_list" "s3" {
  for_each = var.s3_services
  name     = "com.amazonaws.${data.aws_region.current.name}.${each.key}"
}

resource "aws_security_group" "brokers" {
  #checkov:skip=CKV2_AWS_5:the network interfaces of module brokers have it
  name_prefix = "${var.name}-brokers-"
  description = "Lakehead brokers of ${var.name}"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-brokers" })

  # A group that interfaces have cannot be deleted: one in its place comes first.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each          = local.in_rules
  security_group_id = aws_security_group.brokers.id
  description       = "${each.value.what} from ${each.value.cidr}"
  ip_protocol       = "tcp"
  from_port         = each.value.ports.first
  to_port           = each.value.ports.last
  cidr_ipv4         = each.value.cidr
  tags              = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "client_groups" {
  for_each                     = local.in_groups
  security_group_id            = aws_security_group.brokers.id
  description                  = "${each.value.what} from group ${each.value.label}"
  ip_protocol                  = "tcp"
  from_port                    = each.value.ports.first
  to_port                      = each.value.ports.last
  referenced_security_group_id = each.value.id
  tags                         = var.tags
}

# Clients reach the listener that nodes have for one another by no rule at all.
resource "aws_vpc_security_group_ingress_rule" "brokers" {
  for_each                     = local.broker_rules
  security_group_id            = aws_security_group.brokers.id
  description                  = each.value.description
  ip_protocol                  = "tcp"
  from_port                    = each.value.ports.first
  to_port                      = each.value.ports.last
  referenced_security_group_id = aws_security_group.brokers.id
  tags                         = var.tags
}

resource "aws_vpc_security_group_egress_rule" "brokers" {
  for_each                     = local.broker_rules
  security_group_id            = aws_security_group.brokers.id
  description                  = each.value.description
  ip_protocol                  = "tcp"
  from_port                    = each.value.ports.first
  to_port                      = each.value.ports.last
  referenced_security_group_id = aws_security_group.brokers.id
  tags                         = var.tags
}

# States of earlier releases have a resource for each listener.
moved {
  from = aws_vpc_security_group_ingress_rule.brokers
  to   = aws_vpc_security_group_ingress_rule.brokers["kafka"]
}

moved {
  from = aws_vpc_security_group_egress_rule.brokers
  to   = aws_vpc_security_group_egress_rule.brokers["kafka"]
}

moved {
  from = aws_vpc_security_group_ingress_rule.nodes[0]
  to   = aws_vpc_security_group_ingress_rule.brokers["nodes"]
}

moved {
  from = aws_vpc_security_group_egress_rule.nodes[0]
  to   = aws_vpc_security_group_egress_rule.brokers["nodes"]
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  for_each          = var.s3_services
  security_group_id = aws_security_group.brokers.id
  description       = "${each.key} by the gateway endpoint"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  prefix_list_id    = data.aws_ec2_managed_prefix_list.s3[each.key].id
  tags              = var.tags
}

resource "aws_vpc_security_group_egress_rule" "https" {
  for_each          = var.https_egress_cidrs
  security_group_id = aws_security_group.brokers.id
  description       = "HTTPS to ${each.key}"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = each.value
  tags              = var.tags
}

# A security group lets traffic to Amazon's own resolver pass unasked, to others not.
resource "aws_vpc_security_group_egress_rule" "dns" {
  for_each          = local.dns_rules
  security_group_id = aws_security_group.brokers.id
  description       = "DNS by ${each.value.protocol} at ${each.value.cidr}"
  ip_protocol       = each.value.protocol
  from_port         = 53
  to_port           = 53
  cidr_ipv4         = each.value.cidr
  tags              = var.tags
}

# Places only: their values are put in by hand, so that no secret passes through Terraform's state.
resource "aws_secretsmanager_secret" "this" {
  #checkov:skip=CKV2_AWS_57:places only; who puts values in rotates them
  for_each    = var.secrets ? toset(["tls", "first-admin"]) : []
  name        = "${var.name}/${each.key}"
  description = "Lakehead ${var.name}: ${each.key}"
  kms_key_id  = var.kms_key_arn
  tags        = var.tags

  # A name is taken until the secret is gone for good: where data may go, at once.
  recovery_window_in_days = var.force_destroy ? 0 : 7
}
