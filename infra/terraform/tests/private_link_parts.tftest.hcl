# The load balancer, the endpoint service and the clients' endpoint, as their modules make them.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name                     = "lakehead"
  tags                     = { "lakehead:cluster" = "lakehead", "lakehead:bucket" = "lake-bucket" }
  vpc_id                   = "vpc-0123abcd"
  subnet_ids               = { us-east-1a = "subnet-0123abcd", us-east-1b = "subnet-0123abce" }
  broker_security_group_id = "sg-0123abcd"
  hosts                    = { a-0 = { address = "10.42.0.10", node_id = 0 }, b-0 = { address = "10.42.16.10", node_id = 100 } }
  nodes_per_host           = 2
  domain                   = "lake.example.com"
  allowed_principals       = ["arn:aws:iam::210987654321:root", "arn:aws:iam::210987654321:role/pipelines"]
  bootstrap_port           = 9092
  first_port               = 20000
  target_port              = 9192
  metrics_port             = 9404
}

run "the_load_balancer" {
  module {
    source = "./modules/private_link"
  }
  override_data {
    target = data.aws_availability_zone.each["us-east-1b"]
    values = { zone_id = "use1-az6" }
  }
  assert {
    condition     = aws_lb.this.internal && !aws_lb.this.enable_cross_zone_load_balancing && toset(aws_lb.this.subnets) == toset(values(var.subnet_ids))
    error_message = "inside, in each zone, and within zones"
  }
  assert {
    condition     = aws_lb.this.enforce_security_group_inbound_rules_on_private_link_traffic == "off" && length(aws_vpc_security_group_ingress_rule.clients) == 0
    error_message = "accounts are named, addresses of their networks cannot be"
  }
  assert {
    condition     = startswith(aws_lb.this.name, "link-lakehead-") && length(aws_lb.this.name) <= 32 && aws_lb.this.tags["Name"] == "lakehead-lake-bucket-link" && aws_lb.this.tags["lakehead:bucket"] == "lake-bucket"
    error_message = "known by its bucket: ${aws_lb.this.name}"
  }
  assert {
    condition     = { for id, node in aws_lb_target_group_attachment.node : id => "${node.target_id}:${node.port}" } == { 0 = "10.42.0.10:9192", 1 = "10.42.0.10:9193", 100 = "10.42.16.10:9192", 101 = "10.42.16.10:9193" }
    error_message = "each node is the only target of its group"
  }
  assert {
    condition     = { for id, node in aws_lb_listener.node : id => node.port } == { 0 = 20000, 1 = 20001, 100 = 20100, 101 = 20101 } && alltrue([for node in aws_lb_listener.node : node.protocol == "TCP"])
    error_message = "at the first port and its id"
  }
  assert {
    condition     = { for id, group in aws_lb_target_group.node : id => group.health_check[0].port } == { 0 = "9404", 1 = "9405", 100 = "9404", 101 = "9405" } && alltrue([for group in aws_lb_target_group.node : group.health_check[0].path == "/ready"])
    error_message = "asked at its own probe"
  }
  assert {
    condition     = alltrue([for group in concat(values(aws_lb_target_group.node), [aws_lb_target_group.bootstrap]) : !group.target_health_state[0].enable_unhealthy_connection_termination && group.preserve_client_ip == "false"])
    error_message = "a node that cannot reach its bucket for a while keeps its clients"
  }
  assert {
    condition     = alltrue([for group in aws_lb_target_group.node : group.target_group_health[0].dns_failover[0].minimum_healthy_targets_count == "off"])
    error_message = "a node that is away takes no zone out of the name"
  }
  assert {
    condition     = { for what, rule in aws_vpc_security_group_ingress_rule.brokers : what => [rule.from_port, rule.to_port] } == { kafka = [9192, 9193], metrics = [9404, 9405] }
    error_message = "the brokers let it and its checks in"
  }
  assert {
    condition     = alltrue([for rule in aws_vpc_security_group_ingress_rule.brokers : rule.referenced_security_group_id == aws_security_group.nlb.id && rule.cidr_ipv4 == null])
    error_message = "and only it"
  }
  assert {
    condition     = aws_vpc_endpoint_service.this[0].acceptance_required && aws_vpc_endpoint_service.this[0].allowed_principals == toset(var.allowed_principals)
    error_message = "for accounts that are named, each accepted"
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.bootstrap[0].alarm_name == "lakehead-lake-bucket-link"
    error_message = aws_cloudwatch_metric_alarm.bootstrap[0].alarm_name
  }
}

run "two_clusters_of_a_name_have_load_balancers_of_two_names" {
  command = plan
  module {
    source = "./modules/private_link"
  }
  variables {
    name   = "internal-cluster-of-24-ch"
    bucket = "other-bucket"
  }
  override_data {
    target = data.aws_availability_zone.each["us-east-1b"]
    values = { zone_id = "use1-az6" }
  }
  assert {
    condition     = aws_lb.this.name == "link-internal-cluster-o-${substr(sha256("other-bucket"), 0, 8)}"
    error_message = aws_lb.this.name
  }
}

run "nodes_that_speak_tls_behind_a_certificate_of_acm" {
  command = plan
  module {
    source = "./modules/private_link"
  }
  variables {
    subnet_ids      = { us-east-1a = "subnet-0123abcd" }
    hosts           = { a-0 = { address = "10.42.0.10", node_id = 0 } }
    certificate_arn = "arn:aws:acm:us-east-1:123456789012:certificate/00000000-0000-0000-0000-000000000000"
    is_tls          = true
  }
  assert {
    condition     = alltrue([for group in concat(values(aws_lb_target_group.node), [aws_lb_target_group.bootstrap]) : group.protocol == "TLS" && group.health_check[0].protocol == "HTTP"])
    error_message = "the load balancer begins another TLS connection"
  }
}

run "nodes_that_speak_tls_to_clients_by_themselves" {
  command = plan
  module {
    source = "./modules/private_link"
  }
  variables {
    subnet_ids = { us-east-1a = "subnet-0123abcd" }
    hosts      = { a-0 = { address = "10.42.0.10", node_id = 0 } }
    is_tls     = true
  }
  assert {
    condition     = alltrue([for one in concat(values(aws_lb_listener.node), [aws_lb_listener.bootstrap]) : one.protocol == "TCP"]) && alltrue([for group in aws_lb_target_group.node : group.protocol == "TCP"])
    error_message = "the load balancer passes on what it gets"
  }
}

run "by_tls_and_from_an_office" {
  command = plan
  module {
    source = "./modules/private_link"
  }
  variables {
    subnet_ids         = { us-east-1a = "subnet-0123abcd" }
    hosts              = { a-0 = { address = "10.42.0.10", node_id = 0 } }
    allowed_principals = []
    client_cidrs       = { office = "10.8.0.0/16" }
    certificate_arn    = "arn:aws:acm:us-east-1:123456789012:certificate/00000000-0000-0000-0000-000000000000"
    alarm              = false
  }
  assert {
    condition     = alltrue([for one in concat(values(aws_lb_listener.node), [aws_lb_listener.bootstrap]) : one.protocol == "TLS" && one.ssl_policy == "ELBSecurityPolicy-TLS13-1-2-2021-06"])
    error_message = "clients speak TLS"
  }
  assert {
    condition     = alltrue([for group in aws_lb_target_group.node : group.protocol == "TCP"])
    error_message = "brokers do not"
  }
  assert {
    condition     = { for name, rule in aws_vpc_security_group_ingress_rule.clients : name => "${rule.cidr_ipv4} ${rule.from_port}-${rule.to_port}" } == { bootstrap-office = "10.8.0.0/16 9092-9092", nodes-office = "10.8.0.0/16 20000-20001" }
    error_message = "the office reaches the ports that there are, and no other"
  }
  assert {
    condition     = length(aws_vpc_endpoint_service.this) == 0 && length(aws_cloudwatch_metric_alarm.bootstrap) == 0
    error_message = "what was not wanted is not made"
  }
}

run "more_nodes_than_a_load_balancer_has_listeners" {
  command = plan
  module {
    source = "./modules/private_link"
  }
  variables {
    subnet_ids     = { us-east-1a = "subnet-0123abcd" }
    nodes_per_host = 25
  }
  expect_failures = [aws_lb.this]
}

run "a_port_above_the_last_one" {
  command = plan
  module {
    source = "./modules/private_link"
  }
  variables {
    subnet_ids = { us-east-1a = "subnet-0123abcd" }
    first_port = 65435
  }
  expect_failures = [aws_lb.this]
}

run "a_bootstrap_at_the_port_of_a_node" {
  command = plan
  module {
    source = "./modules/private_link"
  }
  variables {
    subnet_ids     = { us-east-1a = "subnet-0123abcd" }
    bootstrap_port = 20101
  }
  expect_failures = [aws_lb.this]
}

run "an_endpoint_that_misses_a_zone_of_the_cluster" {
  command = plan
  module {
    source = "./modules/client_endpoint"
  }
  variables {
    name         = "pipelines"
    tags         = {}
    service_name = "com.amazonaws.vpce.us-east-1.vpce-svc-0123456789abcdef0"
    racks        = ["use1-az4", "use1-az6"]
    ports        = { bootstrap = 9092, first = 20000, last = 20101 }
    client_cidrs = { vpc = "10.60.0.0/16" }
    subnet_ids   = { us-east-1c = "subnet-0123abcd" }
  }
  expect_failures = [aws_vpc_endpoint.this]
}

run "an_endpoint_of_wrong_inputs" {
  command = plan
  module {
    source = "./modules/client_endpoint"
  }
  variables {
    name         = "-"
    tags         = {}
    service_name = "com.amazonaws.us-east-1.s3"
    domain       = "lake"
    racks        = ["us-east-1a"]
    ports        = { bootstrap = 9092, first = 20101, last = 20000 }
    client_cidrs = { vpc = "everywhere" }
    subnet_ids   = {}
  }
  expect_failures = [var.name, var.service_name, var.domain, var.racks, var.ports, var.client_cidrs, var.subnet_ids]
}

run "an_endpoint_that_none_may_use" {
  command = plan
  module {
    source = "./modules/client_endpoint"
  }
  variables {
    name         = "pipelines"
    tags         = {}
    service_name = "com.amazonaws.vpce.us-east-1.vpce-svc-0123456789abcdef0"
    ports        = { bootstrap = 9092, first = 20000, last = 20101 }
    subnet_ids   = { us-east-1c = "subnet-0123abcd" }
  }
  expect_failures = [var.client_security_group_ids]
}

run "the_endpoint_of_clients" {
  module {
    source = "./modules/client_endpoint"
  }
  variables {
    name         = "pipelines"
    tags         = {}
    service_name = "com.amazonaws.vpce.us-east-1.vpce-svc-0123456789abcdef0"
    racks        = ["use1-az4", "use1-az6"]
    ports        = { bootstrap = 9092, first = 20000, last = 20101 }
    client_cidrs = { vpc = "10.60.0.0/16" }
    # Zones of other names than in the cluster's account, of which one is not the cluster's.
    subnet_ids = { us-east-1c = "subnet-0123abcd", us-east-1d = "subnet-0123abce", us-east-1e = "subnet-0123abcf" }
  }
  override_data {
    target = data.aws_availability_zone.each["us-east-1d"]
    values = { zone_id = "use1-az6" }
  }
  override_data {
    target = data.aws_availability_zone.each["us-east-1e"]
    values = { zone_id = "use1-az2" }
  }
  override_resource {
    target = aws_vpc_endpoint.this
    values = {
      id = "vpce-0123456789abcdef0"
      dns_entry = [
        { dns_name = "vpce-0123456789abcdef0-abcdefgh-us-east-1d.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com", hosted_zone_id = "Z7HUB22UULQXV" },
        { dns_name = "vpce-0123456789abcdef0-abcdefgh.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com", hosted_zone_id = "Z7HUB22UULQXV" },
        { dns_name = "vpce-0123456789abcdef0-abcdefgh-us-east-1c.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com", hosted_zone_id = "Z7HUB22UULQXV" },
        { dns_name = "vpce-0123456789abcdef0-abcdefgh-us-east-1e.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com", hosted_zone_id = "Z7HUB22UULQXV" },
      ]
    }
  }
  assert {
    condition = output.names == {
      "lake.example.com"          = "vpce-0123456789abcdef0-abcdefgh.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com"
      "use1-az4.lake.example.com" = "vpce-0123456789abcdef0-abcdefgh-us-east-1c.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com"
      "use1-az6.lake.example.com" = "vpce-0123456789abcdef0-abcdefgh-us-east-1d.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com"
    }
    error_message = "names go by ids of zones, which are the same in both accounts: ${jsonencode(output.names)}"
  }
  assert {
    condition     = output.bootstrap_servers == "lake.example.com:9092" && !aws_vpc_endpoint.this.private_dns_enabled && aws_vpc_endpoint.this.vpc_endpoint_type == "Interface"
    error_message = output.bootstrap_servers
  }
  assert {
    condition     = { for name, rule in aws_vpc_security_group_ingress_rule.cidrs : name => "${rule.from_port}-${rule.to_port}" } == { bootstrap-vpc = "9092-9092", nodes-vpc = "20000-20101" }
    error_message = "clients reach the ports that there are"
  }
}

run "a_zone_more_is_planned_and_one_less" {
  command = plan
  module {
    source = "./modules/client_endpoint"
  }
  variables {
    name         = "pipelines"
    tags         = {}
    service_name = "com.amazonaws.vpce.us-east-1.vpce-svc-0123456789abcdef0"
    racks        = ["use1-az4", "use1-az5"]
    ports        = { bootstrap = 9092, first = 20000, last = 20101 }
    client_cidrs = { vpc = "10.60.0.0/16" }
    subnet_ids   = { us-east-1c = "subnet-0123abcd", us-east-1f = "subnet-0123abce" }
  }
  override_data {
    target = data.aws_availability_zone.each["us-east-1f"]
    values = { zone_id = "use1-az5" }
  }
  assert {
    condition     = output.names["use1-az5.lake.example.com"] == "vpce-0123456789abcdef0-abcdefgh-us-east-1f.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com"
    error_message = "though the endpoint has no such entry yet: ${jsonencode(output.names)}"
  }
  assert {
    condition     = output.names["lake.example.com"] == "vpce-0123456789abcdef0-abcdefgh.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com"
    error_message = "entries of zones that go are not taken for it"
  }
}
