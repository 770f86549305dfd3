# No change of keys makes unreadable what was written before it.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  wal_mode      = "gp3"
  observability = false
}

run "a_cluster_begins_with_a_key_of_its_own" {
  assert {
    condition     = module.storage.own_kms_key_arn != null && module.storage.kms_key_arn == module.storage.own_kms_key_arn
    error_message = "the bucket's key is the cluster's own"
  }
  assert {
    condition     = strcontains(module.storage.own_kms_key_policy_json, "\"kms:ScheduleKeyDeletion\"") && strcontains(module.storage.own_kms_key_policy_json, "Deny")
    error_message = "KMS refuses to delete it: ${module.storage.own_kms_key_policy_json}"
  }
  assert {
    condition     = output.wal_volumes["a-0"].kms_key_arn != module.storage.own_kms_key_arn
    error_message = "snapshots of volumes outlive a destroy, which may delete the cluster's own key"
  }
}

run "a_key_of_yours_is_refused_until_it_is_said_what_becomes_of_the_first" {
  command = plan
  variables {
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-0000-0000-0000-000000000000"
  }
  expect_failures = [var.own_kms_key]
}

run "no_key_at_all_is_refused" {
  command = plan
  variables {
    own_kms_key = false
  }
  expect_failures = [var.own_kms_key]
}

run "with_a_key_of_yours_the_first_one_stays" {
  variables {
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-0000-0000-0000-000000000000"
    own_kms_key = true
  }
  assert {
    condition     = module.storage.kms_key_arn == var.kms_key_arn && output.kms_keys.own == run.a_cluster_begins_with_a_key_of_its_own.kms_keys.own
    error_message = "new objects have the new key, and the first key is kept"
  }
  assert {
    condition     = output.wal_volumes["a-0"].kms_key_arn == run.a_cluster_begins_with_a_key_of_its_own.wal_volumes["a-0"].kms_key_arn
    error_message = "a volume keeps its key: another one would be another, empty volume"
  }
  assert {
    condition = alltrue([
      for policy in [output.broker_policy_json] : strcontains(policy, "arn:aws:kms:us-east-1:*:key/*") && strcontains(policy, "kms:EncryptionContext:aws:s3:arn")
    ])
    error_message = "objects of any earlier key may be read: ${output.broker_policy_json}"
  }
}

run "and_after_another_one_too" {
  variables {
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/22222222-0000-0000-0000-000000000000"
    own_kms_key = true
  }
  assert {
    condition     = output.wal_volumes["a-0"].kms_key_arn == run.a_cluster_begins_with_a_key_of_its_own.wal_volumes["a-0"].kms_key_arn
    error_message = "a volume keeps its key"
  }
}

run "a_key_is_let_go_once_the_data_may_go" {
  variables {
    force_destroy = true
  }
  assert {
    condition     = !strcontains(module.storage.own_kms_key_policy_json, "Deny")
    error_message = "force_destroy gives data and key up: ${module.storage.own_kms_key_policy_json}"
  }
}
