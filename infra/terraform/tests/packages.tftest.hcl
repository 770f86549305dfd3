# Where the package comes from: another Region, a key of its own, and nothing but what its checksums say.

mock_provider "aws" {
  source = "./tests/mocks"
}

run "hosts_install_what_the_checksums_say" {
  assert {
    condition     = yamldecode(module.brokers.user_data["a-0"]).write_files[1] == { path = "/etc/lakehead/package", permissions = "0644", content = "${var.lakehead_wheel}\n${var.package_sha256}\nus-east-1\n" }
    error_message = "the list of checksums is pinned by its own"
  }
  assert {
    condition     = [for file in yamldecode(module.brokers.user_data["a-0"]).write_files : file.content if file.path == "/usr/local/sbin/lakehead-install"] == [file("./modules/brokers/lakehead-install")]
    error_message = "a host installs by the script that images are made by, to the letter"
  }
}

run "another_list_is_another_package" {
  variables {
    package_sha256 = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
  }
  assert {
    condition     = strcontains(module.brokers.user_data["a-0"], "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210") && !strcontains(module.brokers.user_data["a-0"], "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
    error_message = "what was put under the same address again reaches hosts by its checksum only"
  }
}

run "a_bucket_of_another_region" {
  command = plan
  module {
    source = "./modules/brokers"
  }
  variables {
    name              = "lakehead"
    tags              = {}
    slots             = {}
    instance_type     = "m7i.large"
    root_gib          = 16
    nodes_per_host    = 0
    node_ids_per_host = 100
    security_group_id = "sg-0123abcd"
    prefix            = "lakehead"
    kms_key_arn       = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
    wal_uris          = {}
    wal_mode          = "object"
    wal_volume_ids    = {}
    kafka_port        = 9092
    metrics_port      = 9404
    settings          = {}
    session_manager   = false
  }
  override_data {
    target = data.aws_s3_bucket.package
    values = { region = "eu-west-1", bucket_region = "eu-west-1" }
  }
  expect_failures = [output.package_region]
}

run "a_bucket_of_another_region_with_a_way_there" {
  module {
    source = "./modules/brokers"
  }
  variables {
    name                  = "lakehead"
    tags                  = {}
    slots                 = { a-0 = { zone = "us-east-1a", subnet_id = "subnet-0123abcd", node_id = 0 } }
    instance_type         = "m7i.large"
    root_gib              = 16
    nodes_per_host        = 0
    node_ids_per_host     = 100
    security_group_id     = "sg-0123abcd"
    prefix                = "lakehead"
    kms_key_arn           = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
    wal_uris              = { a-0 = "object:" }
    wal_mode              = "object"
    wal_volume_ids        = {}
    kafka_port            = 9092
    metrics_port          = 9404
    settings              = {}
    session_manager       = false
    reaches_other_regions = true
    package_kms_key_arn   = "arn:aws:kms:eu-west-1:123456789012:key/00000000-0000-0000-0000-000000000001"
  }
  override_data {
    target = data.aws_s3_bucket.package
    values = { region = "eu-west-1", bucket_region = "eu-west-1" }
  }
  assert {
    condition     = endswith(yamldecode(output.user_data["a-0"]).write_files[1].content, "\neu-west-1\n")
    error_message = "the package is fetched from where it is"
  }
  assert {
    condition     = [for statement in jsondecode(output.broker_policy_json).Statement : [statement.Action, statement.Resource, statement.Condition.StringEquals["kms:ViaService"]] if statement.Sid == "PackageKey"] == [[["kms:Decrypt"], var.package_kms_key_arn, "s3.eu-west-1.amazonaws.com"]]
    error_message = output.broker_policy_json
  }
}

run "a_digest_that_is_none" {
  command = plan
  variables {
    package_sha256 = "latest"
  }
  expect_failures = [var.package_sha256]
}

run "a_key_by_its_alias" {
  command = plan
  variables {
    package_kms_key_arn = "arn:aws:kms:us-east-1:123456789012:alias/packages"
  }
  expect_failures = [var.package_kms_key_arn]
}

run "a_digest_of_airflow_that_is_none" {
  command = plan
  variables {
    interface_endpoints = ["secretsmanager"]
    airflow_host        = { package_sha256 = "latest" }
  }
  expect_failures = [var.airflow_host]
}
