# A name for the first node of every host. Clients ask there once; from then on they speak to each
# node at the address that it gave itself.

locals {
  name = {
    addresses = ""
    dns       = "brokers.${var.zone_name}"
    nlb       = try(aws_lb.this[0].dns_name, "")
  }[var.kind]

  # By node id, in which the first of each zone come before the second.
  addresses = [
    for host in sort([for slot, host in var.hosts : format("%06d %s", host.node_id, slot)]) : var.hosts[split(" ", host)[1]].address
  ]
}

resource "aws_route53_zone" "this" {
  count   = var.kind == "dns" ? 1 : 0
  name    = var.zone_name
  comment = "Lakehead brokers of ${var.name}"
  tags    = var.tags

  vpc {
    vpc_id = var.vpc_id
  }
}

# Kafka's clients try all addresses of a name, so that a host that is gone costs them a moment.
resource "aws_route53_record" "brokers" {
  #checkov:skip=CKV2_AWS_23:its addresses are those of network interfaces that another module makes
  count   = length(aws_route53_zone.this)
  zone_id = aws_route53_zone.this[0].zone_id
  name    = "brokers.${var.zone_name}"
  type    = "A"
  ttl     = 30
  records = local.addresses
}

resource "aws_security_group" "nlb" {
  count       = var.kind == "nlb" ? 1 : 0
  name_prefix = "${var.name}-bootstrap-"
  description = "Bootstrap load balancer of ${var.name}"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-bootstrap" })

  # A group that interfaces have cannot be deleted: one in its place comes first.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each          = var.kind == "nlb" ? var.client_cidrs : {}
  security_group_id = aws_security_group.nlb[0].id
  description       = "kafka from ${each.value}"
  ip_protocol       = "tcp"
  from_port         = var.port
  to_port           = var.port
  cidr_ipv4         = each.value
  tags              = var.tags
}

resource "aws_vpc_security_group_ingress_rule" "client_groups" {
  for_each                     = var.kind == "nlb" ? var.client_security_group_ids : {}
  security_group_id            = aws_security_group.nlb[0].id
  description                  = "kafka from group ${each.key}"
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
  referenced_security_group_id = each.value
  tags                         = var.tags
}

# Its own checks come from its addresses, in whichever range of the VPC its subnets are.
resource "aws_vpc_security_group_ingress_rule" "brokers" {
  count                        = length(aws_security_group.nlb)
  security_group_id            = var.broker_security_group_id
  description                  = "first nodes from the load balancer"
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
  referenced_security_group_id = aws_security_group.nlb[0].id
  tags                         = var.tags
}

resource "aws_vpc_security_group_egress_rule" "brokers" {
  count                        = length(aws_security_group.nlb)
  security_group_id            = aws_security_group.nlb[0].id
  description                  = "first nodes of the hosts"
  ip_protocol                  = "tcp"
  from_port                    = var.port
  to_port                      = var.port
  referenced_security_group_id = var.broker_security_group_id
  tags                         = var.tags
}

resource "aws_lb" "this" {
  count                            = var.kind == "nlb" ? 1 : 0
  name                             = "${var.name}-kafka"
  internal                         = true
  load_balancer_type               = "network"
  subnets                          = var.subnet_ids
  security_groups                  = [aws_security_group.nlb[0].id]
  enable_cross_zone_load_balancing = false # traffic between zones is paid for, and a bootstrap needs none
  tags                             = var.tags
}

resource "aws_lb_target_group" "this" {
  count                = length(aws_lb.this)
  name                 = "${var.name}-kafka"
  vpc_id               = var.vpc_id
  target_type          = "ip"
  protocol             = "TCP"
  port                 = var.port
  deregistration_delay = 30
  tags                 = var.tags

  health_check {
    protocol            = "TCP"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

resource "aws_lb_listener" "this" {
  count             = length(aws_lb.this)
  load_balancer_arn = aws_lb.this[0].arn
  protocol          = "TCP"
  port              = var.port
  tags              = var.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this[0].arn
  }
}

# By address: that of a slot stays when its instance is replaced.
resource "aws_lb_target_group_attachment" "host" {
  for_each         = var.kind == "nlb" ? var.hosts : {}
  target_group_arn = aws_lb_target_group.this[0].arn
  target_id        = each.value.address
  port             = var.port
}
