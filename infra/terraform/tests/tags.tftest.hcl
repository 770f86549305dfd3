# Tags of the provider reach instances: they follow the rules of the metadata service.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  scaling = { min = 1, max = 2 }
}

run "tags_that_instances_can_show" {
  command = plan
  override_data {
    target = data.aws_default_tags.current
    values = { tags = { "team" = "lake", "cost-center" = "4711", "owner:mail" = "a b/c" } }
  }
  # Of hosts that a plan has yet to make, the settings are known after the apply.
  expect_failures = [check.hosts_run_the_settings]
}

run "a_tag_with_a_space" {
  command = plan
  override_data {
    target = data.aws_default_tags.current
    values = { tags = { "Cost Center" = "4711" } }
  }
  expect_failures = [data.aws_default_tags.current, check.hosts_run_the_settings]
}

run "a_tag_with_a_slash" {
  command = plan
  override_data {
    target = data.aws_default_tags.current
    values = { tags = { "kubernetes.io/cluster/x" = "owned" } }
  }
  expect_failures = [data.aws_default_tags.current, check.hosts_run_the_settings]
}

run "a_tag_of_ours" {
  command = plan
  override_data {
    target = data.aws_default_tags.current
    values = { tags = { "lakehead:bucket" = "another" } }
  }
  expect_failures = [data.aws_default_tags.current, check.hosts_run_the_settings]
}
