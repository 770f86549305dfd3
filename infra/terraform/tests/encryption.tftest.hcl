# Encryption at rest by the nodes: keys, rights, settings, and the way from plain data and back.

mock_provider "aws" {
  source = "./tests/mocks"
}

override_resource {
  target = module.storage.aws_kms_key.nodes
  values = { arn = "arn:aws:kms:us-east-1:123456789012:key/44444444-0000-0000-0000-000000000000" }
}

variables {
  observability = false
  self_healing  = false
  spark         = { services = ["emr-serverless.amazonaws.com"] }
  airflow_host  = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
}

run "nodes_do_not_encrypt_unless_they_are_to" {
  state_key = "nodes_do_not_encrypt_unless_they_are_to"
  assert {
    condition     = module.storage.node_key_arn == null && output.node_keys == null && !strcontains(module.brokers.settings_toml, "encryption") && !strcontains(output.broker_policy_json, "lakehead:cluster\":\"lake-bucket")
    error_message = module.brokers.settings_toml
  }
  assert {
    condition     = output.store == "s3://lake-bucket/lakehead" && !contains(output.interface_endpoints, "kms")
    error_message = output.store
  }
}

run "a_new_cluster_encrypts_from_its_first_record_on" {
  variables {
    encryption = {}
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"encryption.key.provider\" = \"kms\"\n\"encryption.kms.key\" = \"${module.storage.node_key_arn}\"\n")
    error_message = module.brokers.settings_toml
  }
  assert {
    condition     = output.node_keys == { current = module.storage.node_key_arn, own = module.storage.node_key_arn } && module.storage.node_key_arn != module.storage.own_kms_key_arn
    error_message = "roles that may use the bucket's key may not use that of the nodes"
  }
  assert {
    condition     = strcontains(module.storage.node_key_policy_json, "\"kms:ScheduleKeyDeletion\"") && strcontains(module.storage.node_key_policy_json, "Deny")
    error_message = "KMS refuses to delete it: ${module.storage.node_key_policy_json}"
  }
  assert {
    condition     = contains(output.interface_endpoints, "kms") && contains(keys(module.security.https_egress), "endpoints")
    error_message = "hosts have a way to KMS"
  }
  assert {
    condition = alltrue([for name, policy in { broker = output.broker_policy_json, airflow = output.airflow_policy_json, spark = output.spark_policy_json } : {
      for statement in jsondecode(policy).Statement : statement.Sid => [statement.Action, statement.Resource, statement.Condition] if contains(["WrapDataKeys", "UnwrapDataKeys"], statement.Sid)
      } == merge(name == "spark" ? {} : {
        WrapDataKeys = [["kms:GenerateDataKey"], module.storage.node_key_arn, { StringEquals = { "kms:EncryptionContext:lakehead:cluster" = "lake-bucket/lakehead" } }]
        }, {
        UnwrapDataKeys = [["kms:Decrypt"], [module.storage.node_key_arn], { StringEquals = { "kms:EncryptionContext:lakehead:cluster" = "lake-bucket/lakehead" } }]
    })])
    error_message = "nodes and jobs write, Spark reads: ${output.broker_policy_json} ${output.airflow_policy_json} ${output.spark_policy_json}"
  }
  assert {
    condition     = output.store == "s3://lake-bucket/lakehead#encryption.key.provider=kms&encryption.kms.key=${module.storage.node_key_arn}" && output.spark_options.path == output.store && strcontains(output.airflow_connection_uri, urlencode(output.store)) && strcontains(module.airflow[0].user_data, "LAKEHEAD_PATH='${replace(output.store, "&", "\\u0026")}'")
    error_message = output.store
  }
}

run "a_key_of_yours_needs_a_decision_about_the_first" {
  command = plan
  variables {
    encryption = { kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-0000-0000-0000-000000000000" }
  }
  expect_failures = [var.encryption]
}

run "a_key_of_yours_encrypts_and_the_first_still_decrypts" {
  variables {
    encryption = {
      kms_key_arn          = "arn:aws:kms:us-east-1:123456789012:key/22222222-0000-0000-0000-000000000000"
      own_key              = true
      earlier_kms_key_arns = ["arn:aws:kms:us-east-1:123456789012:key/11111111-0000-0000-0000-000000000000"]
    }
  }
  assert {
    condition = alltrue([for policy in [output.broker_policy_json, output.airflow_policy_json] : {
      for statement in jsondecode(policy).Statement : statement.Sid => statement.Resource if contains(["WrapDataKeys", "UnwrapDataKeys"], statement.Sid)
      } == {
      WrapDataKeys   = var.encryption.kms_key_arn
      UnwrapDataKeys = [var.encryption.kms_key_arn, module.storage.node_key_arn, "arn:aws:kms:us-east-1:123456789012:key/11111111-0000-0000-0000-000000000000"]
    }])
    error_message = output.broker_policy_json
  }
  assert {
    condition     = module.storage.node_key_arn == run.a_new_cluster_encrypts_from_its_first_record_on.node_keys.own && strcontains(module.brokers.settings_toml, "\"encryption.kms.key\" = \"${var.encryption.kms_key_arn}\"\n")
    error_message = module.brokers.settings_toml
  }
}

run "plain_data_are_refused_by_nodes_and_readers_once_that_is_wanted" {
  variables {
    encryption = { required = true }
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"encryption.required\" = \"true\"\n") && endswith(output.store, "&encryption.required=true")
    error_message = module.brokers.settings_toml
  }
}

run "what_is_written_would_be_refused" {
  command = plan
  variables {
    encryption = { required = true, enabled = false }
  }
  expect_failures = [var.encryption]
}

run "it_is_turned_off_with_the_keys_in_place" {
  variables {
    encryption = { enabled = false }
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"encryption.key.provider\" = \"none\"\n\"encryption.kms.key\" = \"${module.storage.node_key_arn}\"\n")
    error_message = module.brokers.settings_toml
  }
}

# A cluster that has plain data: of an earlier release, and of this one.
run "a_running_cluster" {
  state_key = "a_running_cluster"
}

run "a_running_cluster_does_not_encrypt_before_all_hosts_can_read_it" {
  state_key = "a_running_cluster"
  command   = plan
  variables {
    encryption = {}
  }
  expect_failures = [terraform_data.guard, check.hosts_run_the_settings]
}

run "a_running_cluster_gets_keys_first" {
  state_key = "a_running_cluster"
  variables {
    encryption = { enabled = false }
  }
}

run "then_it_encrypts" {
  state_key = "a_running_cluster"
  variables {
    encryption = { enabled = true }
  }
  assert {
    condition     = strcontains(module.brokers.settings_toml, "\"encryption.key.provider\" = \"kms\"\n")
    error_message = module.brokers.settings_toml
  }
}

run "an_alias" {
  command = plan
  variables {
    encryption = { kms_key_arn = "alias/lakehead", own_key = false }
  }
  expect_failures = [var.encryption]
}

run "a_key_of_another_region" {
  command = plan
  variables {
    encryption = { kms_key_arn = "arn:aws:kms:eu-west-1:123456789012:key/11111111-0000-0000-0000-000000000000", own_key = false }
  }
  expect_failures = [var.encryption]
}

run "no_key_at_all" {
  command = plan
  variables {
    encryption = { own_key = false }
  }
  expect_failures = [var.encryption]
}
