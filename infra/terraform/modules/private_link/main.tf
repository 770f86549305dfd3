# A way to every node for clients of other networks: a load balancer with one port for each node and
# one to begin at, and an endpoint service by which accounts that are named reach it.

locals {
  # A cluster is known by its bucket; load balancers and target groups have names of 32 characters.
  unique = "${var.name}-${var.bucket}"
  digest = substr(sha256(var.bucket), 0, 8)

  nodes = merge([
    for slot, host in var.hosts : {
      for index in range(var.nodes_per_host) : format("%d", host.node_id + index) => {
        slot        = slot
        index       = index
        address     = host.address
        port        = var.first_port + host.node_id + index
        target_port = var.target_port + index
        health_port = var.metrics_port + index
      }
    }
  ]...)
  first_nodes = { for id, node in local.nodes : node.slot => node if node.index == 0 }
  last_port   = max([for node in local.nodes : node.port]...)
  listeners   = length(local.nodes) + 1

  # Without cross-zone balancing a load balancer's address of a zone leads to nodes of that zone alone, so
  # each zone has a name of its own. The bootstrap's name has the addresses of all zones.
  is_zonal   = length(var.subnet_ids) > 1 && !var.cross_zone
  advertised = local.is_zonal ? "{rack}.${var.domain}" : var.domain
  racks      = { for zone in keys(var.subnet_ids) : data.aws_availability_zone.each[zone].zone_id => zone }

  is_service = length(var.allowed_principals) > 0
  protocol   = var.certificate_arn == null ? "TCP" : "TLS"
  # With a certificate of its own the load balancer begins another TLS connection to such nodes.
  target_protocol = var.certificate_arn != null && var.is_tls ? "TLS" : "TCP"
  client_rules    = merge([for label, cidr in var.client_cidrs : { for what, ports in local.client_ports : "${what}-${label}" => merge(ports, { what = what, cidr = cidr }) }]...)
  client_ports    = { bootstrap = { first = var.bootstrap_port, last = var.bootstrap_port }, nodes = { first = var.first_port, last = local.last_port } }
  broker_ports    = { kafka = var.target_port, metrics = var.metrics_port }
  health_path     = "/ready"
  health_period   = 10
}

data "aws_availability_zone" "each" {
  for_each = toset(keys(var.subnet_ids))
  name     = each.key
}

resource "aws_security_group" "nlb" {
  name_prefix = "${var.name}-link-"
  description = "Load balancer of ${var.name} for clients of other networks"
  vpc_id      = var.vpc_id
  tags        = merge(var.tags, { Name = "${var.name}-link" })

  # A group that interfaces have cannot be deleted: one in its place comes first.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each          = local.client_rules
  security_group_id = aws_security_group.nlb.id
  description       = "${each.value.what} from ${each.value.cidr}"
  ip_protocol       = "tcp"
  from_port         = each.value.first
  to_port           = each.value.last
  cidr_ipv4         = each.value.cidr
  tags              = var.tags
}

resource "aws_vpc_security_group_egress_rule" "brokers" {
  for_each                     = local.broker_ports
  security_group_id            = aws_security_group.nlb.id
  description                  = "${each.key} of the nodes"
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value + var.nodes_per_host - 1
  referenced_security_group_id = var.broker_security_group_id
  tags                         = var.tags
}

# Clients' addresses end at the load balancer, so its group alone is let in, for them and for checks.
resource "aws_vpc_security_group_ingress_rule" "brokers" {
  for_each                     = local.broker_ports
  security_group_id            = var.broker_security_group_id
  description                  = "${each.key} from the load balancer of other networks"
  ip_protocol                  = "tcp"
  from_port                    = each.value
  to_port                      = each.value + var.nodes_per_host - 1
  referenced_security_group_id = aws_security_group.nlb.id
  tags                         = var.tags
}

resource "aws_lb" "this" {
  #checkov:skip=CKV_AWS_150:it keeps nothing, and a change of private_link that ends it is said by the plan
  #checkov:skip=CKV_AWS_91:its logs are of TLS connections alone; flow logs of the VPC have the rest
  # Names of load balancers may not begin with internal-, so that of the cluster does not come first.
  name                             = "link-${substr(var.name, 0, 18)}-${local.digest}"
  internal                         = true
  load_balancer_type               = "network"
  subnets                          = values(var.subnet_ids)
  security_groups                  = [aws_security_group.nlb.id]
  enable_cross_zone_load_balancing = var.cross_zone
  tags                             = merge(var.tags, { Name = "${local.unique}-link" })

  # Clients of an endpoint have addresses of their own networks, which no rule here can know: accounts
  # are named instead (allowed_principals), and accepted.
  enforce_security_group_inbound_rules_on_private_link_traffic = "off"

  lifecycle {
    precondition {
      condition     = local.listeners <= 50
      error_message = "${length(local.nodes)} nodes need ${local.listeners} listeners, one for each and one to begin at, and a Network Load Balancer has 50. Lower nodes_per_host, hosts_per_zone or scaling.max (whose slots all count, also those without a host)."
    }
    precondition {
      condition     = local.last_port <= 65535
      error_message = "private_link.first_port is ${var.first_port}, and the last node's port would be ${local.last_port}: lower it, so that first_port and the highest node id are 65535 at the most."
    }
    precondition {
      condition     = !contains([for node in local.nodes : node.port], var.bootstrap_port)
      error_message = "private_link.bootstrap_port ${var.bootstrap_port} is the port of node ${var.bootstrap_port - var.first_port}: choose one outside ${var.first_port} to ${local.last_port}."
    }
  }
}

# The zone of a bootstrap without a node that serves leaves the name.
resource "aws_lb_target_group" "bootstrap" {
  name_prefix          = "link-"
  vpc_id               = var.vpc_id
  target_type          = "ip"
  protocol             = local.target_protocol
  port                 = var.target_port
  preserve_client_ip   = "false"
  deregistration_delay = 30
  tags                 = merge(var.tags, { Name = "${local.unique}-link-bootstrap" })

  health_check {
    protocol            = "HTTP"
    path                = local.health_path
    port                = var.metrics_port
    interval            = local.health_period
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }

  target_health_state {
    enable_unhealthy_connection_termination = false
  }

  # What listeners use cannot be deleted: the one in its place comes first.
  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_lb_listener" "bootstrap" {
  load_balancer_arn = aws_lb.this.arn
  protocol          = local.protocol
  port              = var.bootstrap_port
  certificate_arn   = var.certificate_arn
  ssl_policy        = var.certificate_arn == null ? null : var.ssl_policy
  tags              = var.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.bootstrap.arn
  }
}

resource "aws_lb_target_group_attachment" "bootstrap" {
  for_each         = local.first_nodes
  target_group_arn = aws_lb_target_group.bootstrap.arn
  target_id        = each.value.address
  port             = each.value.target_port
}

# A group of one target. Its check is for those who look at it: with no other target, connections go to
# this one in any case, and those that are there stay, as when a node cannot reach its bucket for a while.
resource "aws_lb_target_group" "node" {
  for_each             = local.nodes
  name_prefix          = "link-"
  vpc_id               = var.vpc_id
  target_type          = "ip"
  protocol             = local.target_protocol
  port                 = each.value.target_port
  preserve_client_ip   = "false"
  deregistration_delay = 30
  tags                 = merge(var.tags, { Name = "${local.unique}-link-${each.key}" })

  health_check {
    protocol            = "HTTP"
    path                = local.health_path
    port                = each.value.health_port
    interval            = local.health_period
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }

  target_health_state {
    enable_unhealthy_connection_termination = false
  }

  # By default a zone leaves the load balancer's name when one of its groups has no healthy target there;
  # a node's group has its only target in one zone, so every zone would be missing one.
  target_group_health {
    dns_failover {
      minimum_healthy_targets_count      = "off"
      minimum_healthy_targets_percentage = "off"
    }
    unhealthy_state_routing {
      minimum_healthy_targets_count = 1
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_lb_listener" "node" {
  for_each          = local.nodes
  load_balancer_arn = aws_lb.this.arn
  protocol          = local.protocol
  port              = each.value.port
  certificate_arn   = var.certificate_arn
  ssl_policy        = var.certificate_arn == null ? null : var.ssl_policy
  tags              = var.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.node[each.key].arn
  }
}

# By address: that of a slot stays when its instance is replaced, and when a group gives it another one.
resource "aws_lb_target_group_attachment" "node" {
  for_each         = local.nodes
  target_group_arn = aws_lb_target_group.node[each.key].arn
  target_id        = each.value.address
  port             = each.value.target_port
}

resource "aws_vpc_endpoint_service" "this" {
  count                      = local.is_service ? 1 : 0
  acceptance_required        = var.acceptance_required
  network_load_balancer_arns = [aws_lb.this.arn]
  allowed_principals         = var.allowed_principals
  tags                       = merge(var.tags, { Name = "${local.unique}-link" })
}

resource "aws_cloudwatch_metric_alarm" "bootstrap" {
  count               = var.alarm ? 1 : 0
  alarm_name          = "${local.unique}-link"
  alarm_description   = "No node takes clients of other networks: look at the nodes' /ready and at the security groups of the load balancer"
  namespace           = "AWS/NetworkELB"
  metric_name         = "HealthyHostCount"
  statistic           = "Maximum"
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 3
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = var.tags

  dimensions = {
    LoadBalancer = aws_lb.this.arn_suffix
    TargetGroup  = aws_lb_target_group.bootstrap.arn_suffix
  }
}
