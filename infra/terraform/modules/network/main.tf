# A VPC without a way out: brokers need S3 and one another, and no internet gateway or NAT.

locals {
  create     = var.existing == null
  vpc_id     = local.create ? aws_vpc.this[0].id : data.aws_vpc.existing[0].id
  given      = try(var.existing.cidrs, null)
  found      = local.create || local.given != null ? [] : distinct(concat([data.aws_vpc.existing[0].cidr_block], [for one in data.aws_vpc.existing[0].cidr_block_associations : one.cidr_block if one.state == "associated"]))
  vpc_cidrs  = local.create ? [var.cidr] : local.given != null ? local.given : local.found
  subnet_ids = local.create ? { for zone, subnet in aws_subnet.private : zone => subnet.id } : { for zone in var.zones : zone => var.existing.subnet_ids[zone] }

  gateway_route_tables = local.create ? [aws_route_table.private[0].id] : var.existing.route_table_ids
}

data "aws_region" "current" {}

data "aws_vpc" "existing" {
  count = local.create ? 0 : 1
  id    = var.existing.vpc_id
}

data "aws_subnet" "existing" {
  for_each = local.create ? {} : local.subnet_ids
  id       = each.value

  lifecycle {
    postcondition {
      condition     = self.vpc_id == var.existing.vpc_id
      error_message = "Subnet ${each.value} is not in VPC ${var.existing.vpc_id}: name a subnet of that VPC in existing_vpc.subnet_ids."
    }
    postcondition {
      condition     = self.availability_zone == each.key
      error_message = "Subnet ${each.value} is not in zone ${each.key}: EBS volumes and hosts of a zone need a subnet there. Correct existing_vpc.subnet_ids."
    }
  }
}

resource "aws_vpc" "this" {
  #checkov:skip=CKV2_AWS_11:nothing leads out of this VPC, and flow logs are billed by traffic; turn them on where an audit asks for them
  count                = local.create ? 1 : 0
  cidr_block           = var.cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = merge(var.tags, { Name = var.name })
}

# The default group of a VPC lets its members talk; nothing is to use it, so it is emptied.
resource "aws_default_security_group" "this" {
  count  = local.create ? 1 : 0
  vpc_id = aws_vpc.this[0].id
  tags   = merge(var.tags, { Name = "${var.name}-default-closed" })
}

resource "aws_subnet" "private" {
  for_each                = local.create ? { for index, zone in var.zones : zone => index } : {}
  vpc_id                  = aws_vpc.this[0].id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.cidr, 4, each.value)
  map_public_ip_on_launch = false
  tags                    = merge(var.tags, { Name = "${var.name}-${each.key}" })
}

resource "aws_route_table" "private" {
  count  = local.create ? 1 : 0
  vpc_id = aws_vpc.this[0].id
  tags   = merge(var.tags, { Name = "${var.name}-private" })
}

resource "aws_route_table_association" "private" {
  for_each       = aws_subnet.private
  subnet_id      = each.value.id
  route_table_id = aws_route_table.private[0].id
}

# Requests to S3 by these endpoints cost nothing beside S3 itself. Amazon Linux' packages come from S3 too.
resource "aws_vpc_endpoint" "s3" {
  for_each          = local.create || length(var.existing == null ? [] : var.existing.route_table_ids) > 0 ? var.s3_services : []
  vpc_id            = local.vpc_id
  service_name      = "com.amazonaws.${data.aws_region.current.name}.${each.key}"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = local.gateway_route_tables
  tags              = merge(var.tags, { Name = "${var.name}-${each.key}" })
}

resource "aws_security_group" "endpoints" {
  count       = local.create && length(var.interface_endpoints) > 0 ? 1 : 0
  name_prefix = "${var.name}-endpoints-"
  description = "HTTPS from the VPC to interface endpoints"
  vpc_id      = local.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-endpoints" })

  # A group that interfaces have cannot be deleted: one in its place comes first.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  count             = length(aws_security_group.endpoints)
  security_group_id = aws_security_group.endpoints[0].id
  description       = "HTTPS from the VPC"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = var.cidr
  tags              = var.tags
}

resource "aws_vpc_endpoint" "interface" {
  for_each            = local.create ? var.interface_endpoints : []
  vpc_id              = local.vpc_id
  service_name        = "com.amazonaws.${data.aws_region.current.name}.${each.key}"
  vpc_endpoint_type   = "Interface"
  subnet_ids          = values(local.subnet_ids)
  security_group_ids  = [aws_security_group.endpoints[0].id]
  private_dns_enabled = true
  tags                = merge(var.tags, { Name = "${var.name}-${each.key}" })
}
