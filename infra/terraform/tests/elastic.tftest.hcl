# Hosts that come and go: slots, group, hooks, permissions; and what is refused.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  zones         = ["us-east-1a", "us-east-1b", "us-east-1c"]
  scaling       = { min = 3, max = 6 }
  force_destroy = true # the guard would ask S3
}

run "slots_stay_and_no_host_is_fixed" {
  assert {
    # A zone that is lost has its hosts in the other two, and one leaves after another has come.
    condition     = length(output.slots) == 12 && length([for slot in output.slots : slot if slot.zone == "us-east-1b"]) == 4
    error_message = "half of the hosts, and one more, have room in each of three zones"
  }
  assert {
    condition     = [output.slots["a-0"].node_id, output.slots["b-0"].node_id, output.slots["c-0"].node_id, output.slots["a-1"].node_id] == [0, 100, 200, 300]
    error_message = "node ids are those that fixed hosts would have"
  }
  assert {
    condition     = length(output.hosts) == 0 && length(output.wal_volumes) == 0
    error_message = "no fixed host, no volume"
  }
  assert {
    condition     = length(split(",", output.bootstrap_servers)) == 12
    error_message = "clients may begin at every slot"
  }
  assert {
    condition     = toset(keys(module.elastic[0].addresses)) == toset(keys(output.slots))
    error_message = "each slot has an address"
  }
}

run "zones_of_a_group_stay_since_slots_have_ids_by_them" {
  command = plan
  variables {
    zones = ["us-east-1a", "us-east-1c", "us-east-1b"]
  }
  expect_failures = [terraform_data.guard]
}

run "hosts_reach_ec2_and_auto_scaling" {
  command = plan
  assert {
    condition     = local.interface_endpoints == toset(["ec2", "autoscaling", "secretsmanager"])
    error_message = "a new VPC has a way to both"
  }
}

run "an_existing_vpc_has_its_own_ways" {
  command   = plan
  state_key = "an_existing_vpc_has_its_own_ways"
  variables {
    zones        = ["us-east-1a"]
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" }, services = "endpoints" }
  }
  assert {
    condition     = length(local.interface_endpoints) == 0 && length(local.group_slots) == 7
    error_message = "one zone has room for all, and for one more"
  }
  # Known after the apply.
  expect_failures = [check.hosts_run_the_settings]
}

run "without_scaling_there_is_no_group" {
  command = plan
  variables {
    scaling = null
  }
  assert {
    condition     = length(module.elastic) == 0 && output.scaling_policy_json == null && length(output.slots) == 0
    error_message = "fixed hosts only"
  }
  # Of hosts that a plan has yet to make, both are known after the apply.
  expect_failures = [check.hosts_are_as_configured, check.hosts_run_the_settings]
}

run "an_instance_claims_its_slot_and_tells_its_group" {
  assert {
    condition     = strcontains(module.brokers.group_user_data, "ExecStartPre=/opt/lakehead/bin/lakehead slot claim --write /var/lib/lakehead/slot.env")
    error_message = "claimed before the start"
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"ec2.notices\" = \"scaling\"\n") && strcontains(module.brokers.settings_toml, "\"wal\" = \"object:?budget=50\"\n")
    error_message = "the nodes watch for their group"
  }
  assert {
    condition     = !strcontains(module.brokers.group_user_data, "node.id") && !strcontains(module.brokers.group_user_data, "advertised.host")
    error_message = "what a slot says is in no file that all share"
  }
}

run "what_it_costs" {
  command = plan
  variables {
    scaling          = { min = 3, max = 12, spot_percent = 75 }
    expected_traffic = { mib_per_second = 100, readers = 2 }
  }
  assert {
    # 100 MiB/s leave the hosts four times, 40 from each: ten hosts. Of seven above the base five are spot.
    condition     = local.host_count == 10 && local.spot_hosts == 5 && output.monthly_cost_estimate.instances == 515.09
    error_message = "(5 + 5 * 0.4) * 730 * 0.1008"
  }
}

run "little_traffic_costs_the_least_hosts" {
  command = plan
  variables {
    expected_traffic = { mib_per_second = 1, readers = 0 }
  }
  assert {
    condition     = local.host_count == 3 && local.spot_hosts == 0
    error_message = "min"
  }
}

run "volumes_do_not_come_and_go" {
  command = plan
  variables {
    zones    = ["us-east-1a"]
    wal_mode = "gp3"
  }
  expect_failures = [var.scaling]
}

run "more_at_least_than_at_most" {
  command = plan
  variables {
    scaling = { min = 7, max = 6 }
  }
  expect_failures = [var.scaling]
}

run "a_base_above_the_most" {
  command = plan
  variables {
    scaling = { min = 3, max = 6, on_demand_base = 7 }
  }
  expect_failures = [var.scaling]
}

run "more_spot_than_all" {
  command = plan
  variables {
    scaling = { min = 3, max = 6, spot_percent = 101 }
  }
  expect_failures = [var.scaling]
}

run "no_traffic" {
  command = plan
  variables {
    scaling = { min = 3, max = 6, mib_per_second = 0 }
  }
  expect_failures = [var.scaling]
}

run "all_of_the_cpu" {
  command = plan
  variables {
    scaling = { min = 3, max = 6, cpu_percent = 100 }
  }
  expect_failures = [var.scaling]
}

run "types_of_several_sizes" {
  command = plan
  variables {
    scaling = { min = 3, max = 6, more_instance_types = ["m7i.xlarge"] }
  }
  expect_failures = [var.scaling]
}

run "more_alarms_of_a_refresh_than_aws_takes" {
  command = plan
  variables {
    scaling = { min = 1, max = 2, refresh_alarms = [for number in range(11) : "alarm-${number}"] }
  }
  expect_failures = [var.scaling]
}

run "fixed_hosts_too" {
  command = plan
  variables {
    hosts_per_zone = 2
  }
  expect_failures = [var.scaling]
}

run "notices_of_ones_own" {
  command = plan
  variables {
    settings = { "ec2.notices" = "rebalance" }
  }
  expect_failures = [var.scaling]
}

run "a_vpc_that_is_too_small" {
  command = plan
  variables {
    vpc_cidr = "10.42.0.0/24"
    scaling  = { min = 3, max = 12 }
  }
  expect_failures = [var.scaling]
}
