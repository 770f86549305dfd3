# What is part of all hosts at once is not changed under them: each plan of that is refused.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  hosts_per_zone = 2
  observability  = false
  self_healing   = false
}

run "hosts_are_made" {
  assert {
    condition     = terraform_data.place.output == { name = "lakehead", prefix = "lakehead", network = "10.42.0.0/16", kafka_port = "9092", protocol = "SASL_SSL", encryption = "" }
    error_message = "the place that they are made for is kept"
  }
}

run "another_name_would_take_roles_and_the_group_away" {
  command = plan
  variables {
    name = "lake"
  }
  expect_failures = [terraform_data.guard]
}

run "another_prefix_is_refused_to_running_brokers" {
  command = plan
  variables {
    prefix = "other"
  }
  expect_failures = [terraform_data.guard, check.hosts_run_the_settings]
}

run "another_network_would_end_the_way_to_the_bucket" {
  command = plan
  variables {
    vpc_cidr = "10.43.0.0/16"
  }
  expect_failures = [terraform_data.guard]
}

run "another_port_would_close_the_one_in_use" {
  command = plan
  variables {
    kafka_port = 9192
  }
  expect_failures = [terraform_data.guard, check.hosts_run_the_settings]
}

run "more_zones_would_give_two_hosts_one_node_id" {
  command = plan
  variables {
    zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
  }
  expect_failures = [terraform_data.guard, check.hosts_are_as_configured]
}

run "more_hosts_change_no_id" {
  command = plan
  variables {
    hosts_per_zone = 3
  }
  assert {
    condition     = module.brokers.node_ids["a-0"] == "0" && module.brokers.node_ids["a-1"] == "100"
    error_message = "those that are there keep theirs"
  }
  # Not known to a mocked provider before the new hosts are made.
  expect_failures = [check.hosts_are_as_configured]
}

run "one_host" {
  variables {
    hosts_per_zone = 1
  }
}

run "gets_zones_beside_its_own" {
  command = plan
  variables {
    hosts_per_zone = 1
    zones          = ["us-east-1a", "us-east-1b", "us-east-1c"]
  }
  assert {
    condition     = module.brokers.node_ids["a-0"] == "0"
    error_message = "the first host keeps its id"
  }
  # Not known to a mocked provider before the new hosts are made.
  expect_failures = [check.hosts_are_as_configured]
}
