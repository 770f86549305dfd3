# Ways in and out: of clients in all ranges of a VPC, and of hosts to what they need beside S3.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  security = { protocol = "PLAINTEXT" } # so that what needs a way is what a run names
}

run "an_existing_vpc_that_is_entered_by_session_manager" {
  variables {
    session_manager = true
    airflow_host    = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
    existing_vpc    = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" }, services = "endpoints" }
  }
  assert {
    condition     = module.security.https_egress == { endpoints = "10.20.0.0/16", "endpoints-100.64.0.0/16" = "100.64.0.0/16" }
    error_message = "hosts reach Systems Manager and Secrets Manager: ${jsonencode(module.security.https_egress)}"
  }
  assert {
    condition     = module.airflow[0].https_egress == module.security.https_egress
    error_message = "and so does Airflow: ${jsonencode(module.airflow[0].https_egress)}"
  }
}

run "each_need_alone_opens_the_way" {
  variables {
    airflow_host = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" }, services = "endpoints" }
  }
  assert {
    condition     = contains(values(module.airflow[0].https_egress), "10.20.0.0/16")
    error_message = "the password reaches Secrets Manager"
  }
}

run "a_nat_leads_anywhere_by_https" {
  variables {
    wal_mode     = "gp3"
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" }, services = "nat" }
  }
  assert {
    condition     = module.security.https_egress["nat"] == "0.0.0.0/0"
    error_message = jsonencode(module.security.https_egress)
  }
}

run "without_such_a_need_nothing_but_s3_is_open" {
  variables {
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" } }
  }
  assert {
    condition     = length(module.security.https_egress) == 0
    error_message = jsonencode(module.security.https_egress)
  }
}

run "clients_in_all_ranges_of_the_vpc" {
  variables {
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" } }
    client_cidrs = { pods = "100.96.0.0/11" }
    bootstrap    = "nlb"
  }
  assert {
    condition = { for rule, what in module.security.ingress : rule => what.cidr if startswith(rule, "kafka") } == {
      kafka-vpc = "10.20.0.0/16", "kafka-vpc-100.64.0.0/16" = "100.64.0.0/16", kafka-pods = "100.96.0.0/11"
    }
    error_message = "the primary range, the secondary one that is associated, and what is named: ${jsonencode(module.security.ingress)}"
  }
  assert {
    condition     = module.bootstrap.checks_reach_hosts
    error_message = "the load balancer's checks come from its group, whatever its subnets' range"
  }
}

run "ranges_of_a_vpc_that_is_made_in_the_same_apply" {
  state_key = "ranges_of_a_vpc_that_is_made_in_the_same_apply"
  variables {
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" }, cidrs = ["10.30.0.0/16", "198.19.0.0/20"] }
  }
  assert {
    condition     = { for rule, what in module.security.ingress : rule => what.cidr if startswith(rule, "kafka") } == { kafka-vpc = "10.30.0.0/16", "kafka-vpc-198.19.0.0/20" = "198.19.0.0/20" }
    error_message = jsonencode(module.security.ingress)
  }
}

run "clients_by_their_group_and_dns_servers_of_a_company" {
  state_key = "clients_by_their_group_and_dns_servers_of_a_company"
  variables {
    client_security_group_ids = { consumers = "sg-0123abcd" }
    dns_cidrs                 = { corporate = "10.1.0.53/32" }
    bootstrap                 = "nlb"
    interface_endpoints       = ["secretsmanager"]
    airflow_host              = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  assert {
    condition     = { for rule, what in module.security.ingress_groups : rule => what.first_port } == { kafka-consumers = 9092, metrics-consumers = 9404 }
    error_message = jsonencode(module.security.ingress_groups)
  }
  assert {
    condition     = module.security.dns_egress == { tcp-corporate = "10.1.0.53/32", udp-corporate = "10.1.0.53/32" } && module.airflow[0].dns_egress == module.security.dns_egress
    error_message = jsonencode(module.security.dns_egress)
  }
}

run "a_range_that_reaches_beyond_the_private_ones" {
  command = plan
  variables {
    client_cidrs = { office = "172.16.0.0/8" }
  }
  expect_failures = [var.client_cidrs]
}

run "a_range_that_reaches_beyond_the_shared_ones" {
  command = plan
  variables {
    client_cidrs = { pods = "100.64.0.0/9" }
  }
  expect_failures = [var.client_cidrs]
}

run "a_range_of_the_vpc_s_name" {
  command = plan
  variables {
    client_cidrs = { vpc = "10.8.0.0/16" }
  }
  expect_failures = [var.client_cidrs]
}

run "a_group_by_its_name" {
  command = plan
  variables {
    client_security_group_ids = { consumers = "consumers" }
  }
  expect_failures = [var.client_security_group_ids]
}

run "a_dns_server_by_its_name" {
  command = plan
  variables {
    dns_cidrs = { corporate = "dns.example" }
  }
  expect_failures = [var.dns_cidrs]
}

run "an_existing_vpc_without_a_way_to_what_is_needed" {
  command = plan
  variables {
    session_manager = true
    existing_vpc    = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" } }
  }
  expect_failures = [data.aws_region.current]
}

run "an_existing_vpc_with_an_unknown_way" {
  command = plan
  variables {
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" }, services = "internet" }
  }
  expect_failures = [var.existing_vpc]
}

run "an_existing_vpc_with_public_ranges" {
  command = plan
  variables {
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" }, cidrs = ["52.0.0.0/16"] }
  }
  expect_failures = [var.existing_vpc]
}
