# Logs and metrics in CloudWatch: what hosts are told to ship, what they may, and what is made for it.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  force_destroy = true                       # the guard would ask S3
  security      = { protocol = "PLAINTEXT" } # so that what needs a way is what a run names
}

run "without_it_nothing_is_shipped" {
  assert {
    condition     = module.brokers.agent_config == "off\n" && length(output.log_groups) == 0 && !contains(output.interface_endpoints, "logs")
    error_message = module.brokers.agent_config
  }
  assert {
    condition     = !strcontains(output.broker_policy_json, "logs:")
    error_message = output.broker_policy_json
  }
}

run "journals_and_metrics" {
  variables {
    cloudwatch       = {}
    nodes_per_host   = 3
    alarm_topic_arns = ["arn:aws:sns:us-east-1:123456789012:pages"]
  }
  assert {
    condition     = output.log_groups == tomap({ journal = "lakehead-lake-bucket/journal", metrics = "lakehead-lake-bucket/metrics" })
    error_message = "names of groups carry the bucket, as another cluster may have the name"
  }
  assert {
    condition     = contains(output.interface_endpoints, "logs") && !contains(output.interface_endpoints, "monitoring")
    error_message = "metrics are log events: one service is enough"
  }
  assert {
    condition = [for statement in jsondecode(output.broker_policy_json).Statement : [statement.Action, statement.Resource] if strcontains(jsonencode(statement.Action), "logs:")] == [[
      ["logs:CreateLogStream", "logs:PutLogEvents"],
      ["arn:aws:logs:us-east-1:123456789012:log-group:lakehead-lake-bucket/journal:*", "arn:aws:logs:us-east-1:123456789012:log-group:lakehead-lake-bucket/metrics:*"],
    ]]
    error_message = output.broker_policy_json
  }
  assert {
    condition     = length(split("\n", module.brokers.agent_config)) == 3 && endswith(module.brokers.agent_config, "\n")
    error_message = "two lines"
  }
  assert {
    condition = jsondecode(split("\n", module.brokers.agent_config)[0]).logs.logs_collected.journald.collect_list == [{
      log_group_name = "lakehead-lake-bucket/journal", log_stream_name = "@HOST@/{instance_id}"
      units          = ["lakehead.service", "lakehead-settings.service", "lakehead-cloudwatch.service", "cloud-final.service"]
    }]
    error_message = module.brokers.agent_config
  }
  assert {
    # No retention: the agent would need permissions to look for it and to set it.
    condition     = !strcontains(module.brokers.agent_config, "retention") && jsondecode(split("\n", module.brokers.agent_config)[0]).agent == { region = "us-east-1", run_as_user = "cwagent" }
    error_message = module.brokers.agent_config
  }
  assert {
    condition     = [for scrape in jsondecode(split("\n", module.brokers.agent_config)[1]).scrape_configs : [scrape.job_name, scrape.static_configs]] == [["@HOST@", [{ labels = { cluster = "lakehead-lake-bucket" }, targets = ["127.0.0.1:9404", "127.0.0.1:9405", "127.0.0.1:9406"] }]]]
    error_message = module.brokers.agent_config
  }
  assert {
    condition     = [for one in jsondecode(split("\n", module.brokers.agent_config)[0]).logs.metrics_collected.prometheus.emf_processor.metric_declaration : [one.source_labels, one.label_matcher, one.dimensions]] == [[["cluster"], "^lakehead-lake-bucket$", [["cluster"]]]]
    error_message = "one metric for the cluster, not one for each node, and none of another cluster"
  }
  assert {
    condition     = [for alarm in module.observability[0].alarm_names : alarm if strcontains(alarm, "brokers")] == [for name in ["blocks", "checkpoints", "keys", "leaderless", "plain", "store", "unwraps", "wal", "writable"] : "lakehead-lake-bucket-brokers-${name}"]
    error_message = join(" ", module.observability[0].alarm_names)
  }
  assert {
    condition     = module.observability[0].alarms == length(module.observability[0].alarm_names) && strcontains(module.observability[0].dashboard_json, "[\"Lakehead\",\"lakehead_writable\",\"cluster\",\"lakehead-lake-bucket\"")
    error_message = module.observability[0].dashboard_json
  }
  assert {
    # Eighteen metrics, nine alarms and an endpoint in one zone.
    condition     = abs(output.monthly_cost_estimate.fixed - run.without_it_nothing_is_shipped.monthly_cost_estimate.fixed - 18 * 0.3 - 9 * 0.1 - 7.3) < 0.01
    error_message = output.monthly_cost_estimate.fixed
  }
  assert {
    condition     = output.hosts["a-0"].revision == run.without_it_nothing_is_shipped.hosts["a-0"].revision
    error_message = "no host is replaced for it"
  }
}

run "alarms_look_at_what_is_shipped" {
  variables {
    cloudwatch = { logs = false }
  }
  assert {
    condition     = length(setsubtract(module.observability[0].broker_metrics, module.cloudwatch[0].metrics)) == 0 && length(module.observability[0].broker_metrics) > 10
    error_message = "not shipped: ${join(" ", setsubtract(module.observability[0].broker_metrics, module.cloudwatch[0].metrics))}"
  }
  assert {
    condition     = join(",", keys(output.log_groups)) == "metrics" && !strcontains(module.brokers.agent_config, "journald")
    error_message = "metrics alone"
  }
}

run "logs_alone" {
  variables {
    cloudwatch = { metrics = false, retention_days = 365, kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000003" }
  }
  assert {
    condition     = join(",", keys(output.log_groups)) == "journal" && length([for alarm in module.observability[0].alarm_names : alarm if strcontains(alarm, "brokers")]) == 0
    error_message = "no alarms on what does not arrive"
  }
  assert {
    condition     = split("\n", module.brokers.agent_config)[1] == "{}" && !strcontains(module.brokers.agent_config, "prometheus")
    error_message = module.brokers.agent_config
  }
  assert {
    condition     = module.cloudwatch[0].kept == { journal = { days = 365, key = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000003" } }
    error_message = "as long as is said, by the key that is given"
  }
}

run "two_clusters_of_one_name" {
  variables {
    bucket     = "other-bucket"
    cloudwatch = {}
  }
  assert {
    condition     = length(setintersection(values(output.log_groups), values(run.journals_and_metrics.log_groups))) == 0 && !strcontains(output.broker_policy_json, "log-group:lakehead-lake-bucket") && !strcontains(module.brokers.agent_config, "lakehead-lake-bucket")
    error_message = "neither writes to the other's groups, nor adds to its metrics"
  }
}

run "hosts_of_a_group" {
  variables {
    zones      = ["us-east-1a", "us-east-1b", "us-east-1c"]
    scaling    = { min = 3, max = 6 }
    cloudwatch = {}
  }
  assert {
    condition     = jsondecode(split("\n", module.brokers.agent_config)[1]).scrape_configs[0].static_configs[0].targets == ["127.0.0.1:9404", "127.0.0.1:9405"]
    error_message = "as many nodes as cores"
  }
}

run "an_existing_vpc_has_to_have_a_way" {
  state_key = "an_existing_vpc_has_to_have_a_way"
  command   = plan
  variables {
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" } }
    cloudwatch   = {}
  }
  expect_failures = [data.aws_region.current]
}

run "nothing_to_ship" {
  command = plan
  variables {
    cloudwatch = { logs = false, metrics = false }
  }
  expect_failures = [var.cloudwatch]
}

run "days_that_cloudwatch_does_not_know" {
  command = plan
  variables {
    cloudwatch = { retention_days = 31 }
  }
  expect_failures = [var.cloudwatch]
}

run "a_key_by_its_alias" {
  command = plan
  variables {
    cloudwatch = { kms_key_arn = "arn:aws:kms:us-east-1:123456789012:alias/logs" }
  }
  expect_failures = [var.cloudwatch]
}
