# The root module with its defaults: an object WAL in one zone.

mock_provider "aws" {
  source = "./tests/mocks"
}

run "defaults" {
  assert {
    condition     = keys(output.hosts) == ["a-0"] && output.hosts["a-0"].node_id == 0
    error_message = "one host, a-0, with node id 0"
  }
  assert {
    condition     = output.hosts["a-0"].wal == "object:?budget=50" && length(output.wal_volumes) == 0
    error_message = "an object WAL has no volume"
  }
  assert {
    condition     = output.bootstrap_servers == "10.42.0.10:9092" && output.kcat == "kcat -F client.properties -L -b 10.42.0.10:9092"
    error_message = "bootstrap servers are addresses with ports"
  }
  assert {
    condition     = output.store == "s3://lake-bucket/lakehead" && output.spark_options.path == output.store
    error_message = "the store is the bucket with the prefix"
  }
  assert {
    condition     = output.airflow_connection_uri == "lakehead://10.42.0.10:9092/?path=s3%3A%2F%2Flake-bucket%2Flakehead"
    error_message = "the connection has brokers and path: ${output.airflow_connection_uri}"
  }
  assert {
    condition     = module.brokers.imds["a-0"] == "required"
    error_message = "IMDSv2 is required"
  }
  assert {
    condition     = module.storage.force_destroy == false
    error_message = "a bucket with data is not destroyed"
  }
  assert {
    condition     = alltrue([for rule in module.security.ingress : can(regex("^(10\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|192\\.168\\.)", rule.cidr))])
    error_message = "nothing listens to public addresses"
  }
}

run "the_policy_has_what_a_broker_does_and_no_more" {
  assert {
    condition = toset(flatten([for statement in jsondecode(output.broker_policy_json).Statement : statement.Action])) == toset([
      "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListBucket", "s3:ListBucketMultipartUploads",
      "kms:GenerateDataKey", "kms:Decrypt", "secretsmanager:GetSecretValue",
    ])
    error_message = "actions: ${output.broker_policy_json}"
  }
  assert {
    condition     = !strcontains(output.broker_policy_json, "\"Resource\":\"*\"") && alltrue([for statement in jsondecode(output.broker_policy_json).Statement : statement.Effect == "Allow"])
    error_message = "no statement is about every resource"
  }
  assert {
    condition = toset(flatten([for statement in jsondecode(output.broker_policy_json).Statement : [statement.Resource] if startswith(statement.Sid, "Cluster") || statement.Sid == "SettingsObject" || startswith(statement.Sid, "Package")])) == toset([
      "arn:aws:s3:::lake-bucket/lakehead/*", "arn:aws:s3:::lake-bucket", "arn:aws:s3:::lake-bucket/lakehead-settings/brokers.toml", "arn:aws:s3:::lake-bucket/lakehead-settings/cloudwatch.jsonl", "arn:aws:s3:::packages/lakehead/*", "arn:aws:s3:::packages",
    ])
    error_message = "resources: ${output.broker_policy_json}"
  }
  assert {
    condition     = jsondecode(module.storage.bucket_policy_json).Statement[0].Effect == "Deny" && jsondecode(module.storage.bucket_policy_json).Statement[0].Condition.Bool["aws:SecureTransport"] == "false"
    error_message = "the bucket refuses what is not TLS"
  }
}

run "a_package_by_https_needs_no_permission" {
  variables {
    lakehead_wheel = "https://packages.example/lakehead-1.0-py3-none-any.whl"
  }
  assert {
    condition     = length(jsondecode(output.broker_policy_json).Statement) == 7
    error_message = "no statement about a package in S3"
  }
}

run "settings_and_user_data" {
  variables {
    nodes_per_host = 4
    settings       = { "log.retention.ms" = "86400000" }
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"log.retention.ms\" = \"86400000\"\n") && strcontains(module.brokers.settings_toml, "\"nodes\" = 4\n") && strcontains(module.brokers.settings_toml, "\"wal\" = \"object:?budget=50\"\n")
    error_message = module.brokers.settings_toml
  }
  assert {
    condition     = yamldecode(module.brokers.user_data["a-0"]).hostname == "lakehead-a-0" && yamldecode(module.brokers.user_data["a-0"]).write_files[0].content == module.brokers.identity_toml["a-0"]
    error_message = "user data is YAML and has what is the host's own"
  }
  assert {
    condition     = length(module.brokers.user_data["a-0"]) < 16384 && !strcontains(module.brokers.user_data["a-0"], "CAP_SYS_ADMIN")
    error_message = "user data is short, and without reservations no capability is given"
  }
  assert {
    condition     = module.security.ingress["kafka-vpc"].last_port == 9095
    error_message = "as many ports are open as there are nodes"
  }
}

run "force_destroy_is_passed_on" {
  variables {
    force_destroy = true
  }
  assert {
    condition     = module.storage.force_destroy
    error_message = "force_destroy reaches the bucket"
  }
}
