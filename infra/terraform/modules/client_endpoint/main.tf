# The clients' side of private_link, in their account: an endpoint in their VPC, and the names that
# brokers tell them.

locals {
  endpoint_zones = { for zone in keys(var.subnet_ids) : zone => data.aws_availability_zone.each[zone].zone_id }
  zone_of_rack   = { for zone, rack in local.endpoint_zones : rack => zone if contains(var.racks, rack) }
  missing_racks  = sort(setsubtract(var.racks, values(local.endpoint_zones)))

  # An endpoint has a name for all its zones, the shortest, and one for each, which is that with the zone
  # behind its first part. A plan that adds a zone does not have the zone's among the entries yet.
  entries     = aws_vpc_endpoint.this.dns_entry
  for_all     = [for entry in local.entries : entry if length(entry.dns_name) == min([for one in local.entries : length(one.dns_name)]...)][0]
  labels      = split(".", local.for_all.dns_name)
  zonal_names = { for rack, zone in local.zone_of_rack : rack => join(".", concat(["${local.labels[0]}-${zone}"], slice(local.labels, 1, length(local.labels)))) }

  client_ports = { bootstrap = { first = var.ports.bootstrap, last = var.ports.bootstrap }, nodes = { first = var.ports.first, last = var.ports.last } }
  cidr_rules   = merge([for label, cidr in var.client_cidrs : { for what, ports in local.client_ports : "${what}-${label}" => merge(ports, { what = what, cidr = cidr }) }]...)
  group_rules  = merge([for label, id in var.client_security_group_ids : { for what, ports in local.client_ports : "${what}-${label}" => merge(ports, { what = what, label = label, id = id }) }]...)
}

# The same place has another name in another account, and one id in all: racks are ids.
data "aws_availability_zone" "each" {
  for_each = toset(keys(var.subnet_ids))
  name     = each.key
}

resource "aws_security_group" "endpoint" {
  name_prefix = "${var.name}-kafka-"
  description = "Endpoint of Kafka clients to ${var.domain}"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-kafka" })

  # A group that interfaces have cannot be deleted: one in its place comes first.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "cidrs" {
  for_each          = local.cidr_rules
  security_group_id = aws_security_group.endpoint.id
  description       = "${each.value.what} from ${each.value.cidr}"
  ip_protocol       = "tcp"
  from_port         = each.value.first
  to_port           = each.value.last
  cidr_ipv4         = each.value.cidr
  tags              = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "groups" {
  for_each                     = local.group_rules
  security_group_id            = aws_security_group.endpoint.id
  description                  = "${each.value.what} from group ${each.value.label}"
  ip_protocol                  = "tcp"
  from_port                    = each.value.first
  to_port                      = each.value.last
  referenced_security_group_id = each.value.id
  tags                         = var.tags
}

resource "aws_vpc_endpoint" "this" {
  vpc_id              = var.vpc_id
  service_name        = var.service_name
  vpc_endpoint_type   = "Interface"
  subnet_ids          = values(var.subnet_ids)
  security_group_ids  = [aws_security_group.endpoint.id]
  private_dns_enabled = false # by the zone below, whose names tell zones apart
  tags                = merge(var.tags, { Name = "${var.name}-kafka" })

  lifecycle {
    precondition {
      condition     = length(local.missing_racks) == 0
      error_message = "Nodes in ${join(", ", local.missing_racks)} could not be reached: the endpoint has no subnet in a zone with that id, only in ${join(", ", sort(values(local.endpoint_zones)))}. Add a subnet there to subnet_ids, or have the cluster set private_link.cross_zone."
    }
  }
}

resource "aws_route53_zone" "this" {
  name    = var.domain
  comment = "Kafka brokers by ${var.service_name}"
  tags    = var.tags

  vpc {
    vpc_id = var.vpc_id
  }
}

resource "aws_route53_record" "bootstrap" {
  zone_id = aws_route53_zone.this.zone_id
  name    = var.domain
  type    = "A"

  alias {
    name                   = local.for_all.dns_name
    zone_id                = local.for_all.hosted_zone_id
    evaluate_target_health = false
  }
}

resource "aws_route53_record" "rack" {
  for_each = local.zone_of_rack
  zone_id  = aws_route53_zone.this.zone_id
  name     = "${each.key}.${var.domain}"
  type     = "A"

  alias {
    name                   = local.zonal_names[each.key]
    zone_id                = local.for_all.hosted_zone_id
    evaluate_target_health = false
  }
}
