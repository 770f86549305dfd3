# A setting changes one object: no instance, no user data, no launch template.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  zones         = ["us-east-1a", "us-east-1b", "us-east-1c"]
  force_destroy = true # the guard would ask S3
}

run "settings_are_an_object_beside_the_prefix" {
  assert {
    condition     = output.settings.address == "s3://lake-bucket/lakehead-settings/brokers.toml"
    error_message = output.settings.address
  }
  assert {
    condition     = output.settings.version == substr(sha256(module.brokers.settings_toml), 0, 12) && length(output.settings.reported) == 0 && length(output.hosts_with_other_settings) == 0
    error_message = "a host that has reported nothing is not named"
  }
  assert {
    # What a host reads from the bucket never says which host it is.
    condition     = alltrue([for name in ["node.id", "host.id", "broker.rack", "advertised.host", "store", "data"] : !strcontains(module.brokers.settings_toml, "\"${name}\"") && strcontains(module.brokers.identity_toml["b-0"], "\"${name}\"")])
    error_message = module.brokers.settings_toml
  }
  assert {
    condition     = strcontains(module.brokers.user_data["a-0"], "s3 cp \"s3://lake-bucket/lakehead-settings/brokers.toml\"") && strcontains(module.brokers.user_data["a-0"], "reports=\"s3://lake-bucket/lakehead/hosts/$")
    error_message = "the script knows where"
  }
}

run "a_setting_changes_no_fixed_host" {
  variables {
    settings        = { "log.retention.ms" = "86400000", "cluster.name" = "ü" }
    wal_puts_budget = 60
    nodes_per_host  = 4
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"log.retention.ms\" = \"86400000\"\n") && output.settings.version != run.settings_are_an_object_beside_the_prefix.settings.version
    error_message = "the object has it"
  }
  assert {
    condition     = join(",", [for slot, host in output.hosts : "${slot} ${host.instance} ${host.revision}"]) == join(",", [for slot, host in run.settings_are_an_object_beside_the_prefix.hosts : "${slot} ${host.instance} ${host.revision}"]) && length(output.hosts_to_replace) == 0
    error_message = "no host is made of something else now: a revision has all of user data"
  }
}

run "hosts_of_another_version_are_named" {
  override_data {
    target = module.brokers.data.aws_s3_objects.reports
    values = { keys = [
      "lakehead/hosts/lakehead-a-0/settings-0123456789ab",
      "lakehead/hosts/lakehead-b-0/failed-0123456789ab",
      "lakehead/hosts/lakehead-z-9/settings-0123456789ab",
    ] }
  }
  assert {
    condition     = join(",", output.hosts_with_other_settings) == "a-0" && output.settings.reported["a-0"] == "0123456789ab"
    error_message = "those that there are"
  }
  expect_failures = [check.hosts_run_the_settings]
}

run "without_reports_again" {
  assert {
    condition     = length(output.hosts_with_other_settings) == 0
    error_message = "none is named"
  }
}
