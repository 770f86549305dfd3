# Clients of other networks: a port for each node, what clients are told, who may come; and what is refused.

mock_provider "aws" {
  source = "./tests/mocks"
}

override_data {
  target = module.private_link[0].data.aws_availability_zone.each["us-east-1b"]
  values = { zone_id = "use1-az6" }
}

override_data {
  target = module.private_link[0].data.aws_availability_zone.each["us-east-1c"]
  values = { zone_id = "use1-az1" }
}

variables {
  zones        = ["us-east-1a", "us-east-1b", "us-east-1c"]
  private_link = { domain = "lake.example.com", allowed_principals = ["arn:aws:iam::210987654321:root"] }
}

run "a_domain_that_is_none" {
  command = plan
  variables {
    private_link = { domain = "lake", client_cidrs = { office = "10.8.0.0/16" } }
  }
  expect_failures = [var.private_link]
}

run "all_of_aws_as_principal" {
  command = plan
  variables {
    private_link = { domain = "lake.example.com", allowed_principals = ["*"] }
  }
  expect_failures = [var.private_link]
}

run "nobody_to_come" {
  command = plan
  variables {
    private_link = { domain = "lake.example.com" }
  }
  expect_failures = [var.private_link]
}

run "clients_of_the_internet" {
  command = plan
  variables {
    private_link = { domain = "lake.example.com", client_cidrs = { all = "0.0.0.0/0" } }
  }
  expect_failures = [var.private_link]
}

run "a_port_of_root" {
  command = plan
  variables {
    private_link = { domain = "lake.example.com", client_cidrs = { office = "10.8.0.0/16" }, bootstrap_port = 443 }
  }
  expect_failures = [var.private_link]
}

run "a_listener_among_the_ports_of_the_main_one" {
  command = plan
  variables {
    private_link = { domain = "lake.example.com", client_cidrs = { office = "10.8.0.0/16" }, target_port = 9093 }
  }
  expect_failures = [var.private_link]
}

run "listeners_of_ones_own_beside_it" {
  command = plan
  variables {
    settings = { "extra.listeners" = "LINK://0.0.0.0:9192" }
  }
  expect_failures = [var.private_link]
}

run "a_certificate_of_iam" {
  command = plan
  variables {
    private_link = { domain = "lake.example.com", client_cidrs = { office = "10.8.0.0/16" }, certificate_arn = "arn:aws:iam::123456789012:server-certificate/x" }
  }
  expect_failures = [var.private_link]
}

run "with_cross_zone_one_name_is_enough" {
  variables {
    private_link = { domain = "lake.example.com", allowed_principals = ["arn:aws:iam::210987654321:root"], cross_zone = true }
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"LINK://lake.example.com:{20000+node.id}\"") && length(output.private_link.client.racks) == 0
    error_message = module.brokers.settings_toml
  }
}

run "with_one_zone_too" {
  state_key = "with_one_zone_too"
  variables {
    zones = ["us-east-1a"]
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"LINK://lake.example.com:{20000+node.id}\"") && length(output.private_link.listeners) == 3
    error_message = module.brokers.settings_toml
  }
}

run "ports_and_clients_without_privatelink" {
  variables {
    private_link = { domain = "lake.example.com", client_cidrs = { office = "10.8.0.0/16" }, bootstrap_port = 9094, first_port = 30000, target_port = 19192 }
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "LINK://0.0.0.0:19192") && strcontains(module.brokers.settings_toml, "{30000+node.id}")
    error_message = module.brokers.settings_toml
  }
  assert {
    condition     = output.private_link.client.service_name == null && output.private_link.bootstrap_servers == "lake.example.com:9094"
    error_message = "no endpoint service without accounts"
  }
}

run "without_it" {
  variables {
    private_link = null
  }
  assert {
    condition     = length(module.private_link) == 0 && output.private_link == null && !strcontains(module.brokers.settings_toml, "extra.")
    error_message = "none of it is there"
  }
}

run "a_port_leads_to_each_node" {
  assert {
    condition = { for port, targets in output.private_link.listeners : port => [for target in targets : "${target.slot}:${target.port}"] } == {
      9092  = ["a-0:9192", "b-0:9192", "c-0:9192"]
      20000 = ["a-0:9192"], 20001 = ["a-0:9193"], 20100 = ["b-0:9192"], 20101 = ["b-0:9193"], 20200 = ["c-0:9192"], 20201 = ["c-0:9193"]
    }
    error_message = jsonencode(output.private_link.listeners)
  }
  assert {
    condition     = alltrue(flatten([for targets in output.private_link.listeners : [for target in targets : target.address == module.brokers.private_ips[target.slot]]]))
    error_message = "targets are addresses of slots, which stay"
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"extra.listeners\" = \"LINK://0.0.0.0:9192\"\n")
    error_message = module.brokers.settings_toml
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"extra.advertised.listeners\" = \"LINK://{rack}.lake.example.com:{20000+node.id}\"\n")
    error_message = "in each zone a name: ${module.brokers.settings_toml}"
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"connections.max.idle.ms\" = \"300000\"\n")
    error_message = "before AWS forgets a connection, its broker closes it"
  }
  assert {
    condition     = output.private_link.bootstrap_servers == "lake.example.com:9092" && output.private_link.client.racks == tolist(["use1-az1", "use1-az4", "use1-az6"])
    error_message = jsonencode(output.private_link.client)
  }
  assert {
    condition     = output.private_link.client.ports == { bootstrap = 9092, first = 20000, last = 20201 } && output.private_link.client.domain == "lake.example.com"
    error_message = jsonencode(output.private_link.client)
  }
  assert {
    condition = output.private_link.names == {
      "lake.example.com"          = "lakehead-kafka-0123456789abcdef.elb.us-east-1.amazonaws.com"
      "use1-az1.lake.example.com" = "us-east-1c.lakehead-kafka-0123456789abcdef.elb.us-east-1.amazonaws.com"
      "use1-az4.lake.example.com" = "us-east-1a.lakehead-kafka-0123456789abcdef.elb.us-east-1.amazonaws.com"
      "use1-az6.lake.example.com" = "us-east-1b.lakehead-kafka-0123456789abcdef.elb.us-east-1.amazonaws.com"
    }
    error_message = jsonencode(output.private_link.names)
  }
  assert {
    condition     = { for slot, host in output.hosts : slot => host.revision } == { for slot, host in run.without_it.hosts : slot => host.revision } && length(output.hosts_to_replace) == 0
    error_message = "no host is made again for it: it is a change of settings"
  }
  assert {
    condition     = floor(output.monthly_cost_estimate.fixed * 100 + 0.5) == floor((run.without_it.monthly_cost_estimate.fixed + 16.53) * 100 + 0.5)
    error_message = "a load balancer and an alarm cost"
  }
}

# Twelve hosts at the most have 24 slots in three zones: 48 nodes, and a port to begin at.

run "slots_of_a_group_have_ports_with_or_without_a_host" {
  variables {
    scaling       = { min = 3, max = 12 }
    force_destroy = true
  }
  assert {
    condition     = length(output.private_link.listeners) == 49 && length(output.private_link.listeners["9092"]) == 24
    error_message = "a port for each node of each slot"
  }
  assert {
    condition     = output.private_link.listeners["22301"][0] == { slot = "c-7", address = module.elastic[0].addresses["c-7"], port = 9193 }
    error_message = jsonencode(output.private_link.listeners["22301"])
  }
}
