# Names for bootstrap.servers.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
}

run "addresses" {
  assert {
    condition     = output.bootstrap_servers == "10.42.0.10:9092,10.42.0.10:9092,10.42.0.10:9092" && length(module.bootstrap.target_addresses) == 0
    error_message = "the first node of every host: ${output.bootstrap_servers}"
  }
}

run "dns" {
  variables {
    bootstrap = "dns"
  }
  assert {
    condition     = output.bootstrap_servers == "brokers.lakehead.internal:9092" && startswith(output.airflow_connection_uri, "lakehead://brokers.lakehead.internal:9092/")
    error_message = "a name in the cluster's own zone: ${output.bootstrap_servers}"
  }
  assert {
    condition     = contains(module.bootstrap.target_addresses, "10.42.0.10")
    error_message = "which means the hosts"
  }
  assert {
    condition     = output.monthly_cost_estimate.fixed == run.addresses.monthly_cost_estimate.fixed + 0.5
    error_message = "a hosted zone costs"
  }
}

run "dns_in_a_zone_of_that_name" {
  state_key = "dns_in_a_zone_of_that_name"
  variables {
    bootstrap      = "dns"
    bootstrap_zone = "lake.example.com"
    kafka_port     = 19092
  }
  assert {
    condition     = output.bootstrap_servers == "brokers.lake.example.com:19092"
    error_message = output.bootstrap_servers
  }
}

run "nlb" {
  variables {
    bootstrap    = "nlb"
    client_cidrs = { office = "10.8.0.0/16" }
  }
  assert {
    condition     = output.bootstrap_servers == "lakehead-kafka-0123456789abcdef.elb.us-east-1.amazonaws.com:9092"
    error_message = output.bootstrap_servers
  }
  assert {
    condition     = length(module.bootstrap.target_addresses) == 3
    error_message = "every host is behind it"
  }
}

run "what_the_nlb_is" {
  module {
    source = "./modules/bootstrap"
  }
  variables {
    name                     = "lakehead"
    tags                     = {}
    kind                     = "nlb"
    zone_name                = "lakehead.internal"
    vpc_id                   = "vpc-0123abcd"
    subnet_ids               = ["subnet-0123abcd"]
    client_cidrs             = { vpc = "10.42.0.0/16" }
    broker_security_group_id = "sg-0123abcd"
    hosts                    = { a-0 = { address = "10.42.0.10", node_id = 0 } }
    port                     = 9092
  }
  assert {
    condition     = aws_lb.this[0].internal && !aws_lb.this[0].enable_cross_zone_load_balancing && aws_lb_target_group.this[0].health_check[0].protocol == "TCP"
    error_message = "inside the VPC, within a zone, asked by TCP"
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.clients["vpc"].cidr_ipv4 == "10.42.0.0/16" && length(aws_route53_zone.this) == 0
    error_message = "clients of the VPC reach it"
  }
}

run "addresses_of_the_first_hosts_of_all_zones_come_first" {
  command = plan
  module {
    source = "./modules/bootstrap"
  }
  variables {
    name                     = "lakehead"
    tags                     = {}
    kind                     = "addresses"
    zone_name                = "lakehead.internal"
    vpc_id                   = "vpc-0123abcd"
    subnet_ids               = ["subnet-0123abcd"]
    client_cidrs             = { vpc = "10.42.0.0/16" }
    broker_security_group_id = "sg-0123abcd"
    hosts = {
      a-0  = { address = "10.42.0.10", node_id = 0 }, b-0 = { address = "10.42.16.10", node_id = 100 },
      a-10 = { address = "10.42.0.20", node_id = 2000 }, a-9 = { address = "10.42.0.19", node_id = 1800 },
    }
    port = 9092
  }
  assert {
    condition     = output.bootstrap_servers == "10.42.0.10:9092,10.42.16.10:9092,10.42.0.19:9092,10.42.0.20:9092"
    error_message = output.bootstrap_servers
  }
}
