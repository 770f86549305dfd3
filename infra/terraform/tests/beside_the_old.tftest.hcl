# Hosts of another release beside those that are there, which leave later: numbers, ids, volumes.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  wal_mode       = "io2-multi-attach"
  hosts_per_zone = 2
  observability  = false
}

run "a_first_host_below_zero" {
  command = plan
  variables {
    first_host = -1
  }
  expect_failures = [var.first_host]
}

run "more_hosts_than_numbers" {
  command = plan
  variables {
    first_host = 49
  }
  expect_failures = [var.first_host]
}

run "a_group_has_its_own_way" {
  command = plan
  variables {
    wal_mode       = "object"
    hosts_per_zone = 1
    first_host     = 1
    scaling        = { min = 1, max = 2 }
  }
  expect_failures = [var.first_host]
}

run "the_old_hosts" {
  assert {
    condition     = keys(output.hosts) == ["a-0", "a-1"]
    error_message = jsonencode(keys(output.hosts))
  }
}

run "new_ones_beside_them" {
  variables {
    hosts_per_zone = 4
    lakehead_wheel = "s3://packages/lakehead/lakehead-2.0-py3-none-any.whl"
    instance_type  = "m7i.xlarge"
  }
  assert {
    condition     = { for slot, host in output.hosts : slot => host.node_id } == { a-0 = 0, a-1 = 100, a-2 = 200, a-3 = 300 }
    error_message = "with ids of their own: ${jsonencode(output.hosts)}"
  }
  assert {
    condition     = alltrue([for key, attachment in run.the_old_hosts.wal_attachments : output.wal_attachments[key] == attachment])
    error_message = "what the old ones had, they have"
  }
}

run "the_old_ones_are_gone" {
  variables {
    first_host     = 2
    lakehead_wheel = "s3://packages/lakehead/lakehead-2.0-py3-none-any.whl"
    instance_type  = "m7i.xlarge"
  }
  assert {
    condition     = keys(output.hosts) == ["a-2", "a-3"] && output.hosts["a-2"].node_id == 200
    error_message = jsonencode(output.hosts)
  }
  assert {
    condition     = output.hosts["a-2"].revision == run.new_ones_beside_them.hosts["a-2"].revision && output.hosts["a-2"].address == run.new_ones_beside_them.hosts["a-2"].address
    error_message = "those that stay are not made again"
  }
  assert {
    condition     = { for slot in keys(output.wal_volumes) : slot => [for attachment in output.wal_attachments : attachment.host if attachment.volume == slot] } == { a-2 = ["a-3"], a-3 = ["a-2"] }
    error_message = "each is the taker of the other's volume: ${jsonencode(output.wal_attachments)}"
  }
}
