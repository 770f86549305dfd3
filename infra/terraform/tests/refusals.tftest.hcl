# What is refused, before anything is made: each by the variable or check that says why. Two checks come with
# every plan and look at hosts. A test of a plan takes a check that is unknown for one that failed: what is
# mocked is known in plans, too, and settings that follow from a wrong variable leave theirs unknown.

mock_provider "aws" {
  source          = "./tests/mocks"
  override_during = plan
}

run "a_name_in_capitals" {
  command = plan
  variables {
    name = "Lake"
  }
  expect_failures = [var.name]
}

run "a_name_of_load_balancers_of_aws" {
  command = plan
  variables {
    name = "internal-lake"
  }
  expect_failures = [var.name]
}

run "tags_of_ours" {
  command = plan
  variables {
    tags = { "lakehead:wal" = "x" }
  }
  expect_failures = [var.tags]
}

run "a_tag_with_a_space" {
  command = plan
  variables {
    tags = { "cost centre" = "x" }
  }
  expect_failures = [var.tags]
}

run "no_zone" {
  command = plan
  variables {
    zones = []
  }
  expect_failures = [var.zones]
}

run "two_zones" {
  command = plan
  variables {
    zones = ["us-east-1a", "us-east-1b"]
  }
  expect_failures = [var.zones]
}

run "a_zone_twice" {
  command = plan
  variables {
    zones = ["us-east-1a", "us-east-1a", "us-east-1b"]
  }
  expect_failures = [var.zones]
}

run "a_local_zone" {
  command = plan
  variables {
    zones = ["us-west-2-lax-1a"]
  }
  expect_failures = [var.zones]
}

run "zones_of_two_regions" {
  command = plan
  variables {
    zones = ["us-east-1a", "us-east-1b", "us-east-2a"]
  }
  expect_failures = [var.zones]
}

run "zones_outside_the_provider_s_region" {
  command = plan
  variables {
    zones = ["eu-west-1a"]
  }
  expect_failures = [data.aws_region.current]
}

run "a_public_vpc_range" {
  command = plan
  variables {
    vpc_cidr = "8.8.0.0/16"
  }
  expect_failures = [var.vpc_cidr]
}

run "a_vpc_range_too_small" {
  command = plan
  variables {
    vpc_cidr = "10.0.0.0/28"
  }
  expect_failures = [var.vpc_cidr]
}

run "an_existing_vpc_without_a_zone_s_subnet" {
  command = plan
  variables {
    zones        = ["us-east-1b"]
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" } }
  }
  expect_failures = [var.existing_vpc]
}

run "an_existing_vpc_with_a_wrong_id" {
  command = plan
  variables {
    existing_vpc = { vpc_id = "my-vpc", subnet_ids = { us-east-1a = "subnet-0123abcd" } }
  }
  expect_failures = [var.existing_vpc]
}

run "endpoints_in_an_existing_vpc" {
  command = plan
  variables {
    existing_vpc        = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" } }
    interface_endpoints = ["ssm"]
  }
  expect_failures = [var.interface_endpoints]
}

run "endpoints_by_their_long_name" {
  command = plan
  variables {
    interface_endpoints = ["com.amazonaws.us-east-1.ssm"]
  }
  expect_failures = [var.interface_endpoints]
}

run "clients_of_everywhere" {
  command = plan
  variables {
    client_cidrs = { all = "0.0.0.0/0" }
  }
  expect_failures = [var.client_cidrs, check.hosts_run_the_settings]
}

run "clients_of_a_public_range" {
  command = plan
  variables {
    client_cidrs = { office = "52.1.2.0/24" }
  }
  expect_failures = [var.client_cidrs, check.hosts_run_the_settings]
}

run "a_private_range_that_is_too_wide" {
  command = plan
  variables {
    client_cidrs = { office = "10.0.0.0/4" }
  }
  expect_failures = [var.client_cidrs, check.hosts_run_the_settings]
}

run "egress_to_no_range" {
  command = plan
  variables {
    https_egress_cidrs = { mirror = "mirror.example" }
  }
  expect_failures = [var.https_egress_cidrs]
}

run "no_host" {
  command = plan
  variables {
    hosts_per_zone = 0
  }
  expect_failures = [var.hosts_per_zone]
}

run "half_a_host" {
  command = plan
  variables {
    hosts_per_zone = 1.5
  }
  expect_failures = [var.hosts_per_zone]
}

run "more_nodes_than_ids" {
  command = plan
  variables {
    nodes_per_host = 101
  }
  expect_failures = [var.nodes_per_host]
}

run "an_instance_type_before_nitro" {
  command = plan
  variables {
    instance_type = "m4.large"
  }
  expect_failures = [var.instance_type]
}

run "no_instance_type" {
  command = plan
  variables {
    instance_type = "large"
  }
  expect_failures = [var.instance_type]
}

run "no_image" {
  command = plan
  variables {
    ami_id = "amazon-linux"
  }
  expect_failures = [var.ami_id, check.hosts_run_the_settings]
}

run "a_root_volume_too_small" {
  command = plan
  variables {
    root_gib = 4
  }
  expect_failures = [var.root_gib, check.hosts_run_the_settings]
}

run "a_package_that_is_no_wheel" {
  command = plan
  variables {
    lakehead_wheel = "s3://packages/lakehead.tar.gz"
  }
  expect_failures = [var.lakehead_wheel]
}

run "a_package_without_encryption" {
  command = plan
  variables {
    lakehead_wheel = "http://packages.example/lakehead-1.0-py3-none-any.whl"
  }
  expect_failures = [var.lakehead_wheel]
}

run "a_setting_that_is_made_elsewhere" {
  command = plan
  variables {
    settings = { "node.id" = "7" }
  }
  expect_failures = [var.settings]
}

run "a_port_of_root" {
  command = plan
  variables {
    kafka_port = 92
  }
  expect_failures = [var.kafka_port]
}

run "a_metrics_port_of_root" {
  command = plan
  variables {
    metrics_port = 80
  }
  expect_failures = [var.metrics_port]
}

run "ports_that_overlap" {
  command = plan
  variables {
    metrics_port = 9100
  }
  expect_failures = [var.metrics_port]
}

run "a_bucket_in_capitals" {
  command = plan
  variables {
    bucket = "Lake"
  }
  expect_failures = [var.bucket]
}

run "a_bucket_with_dots" {
  command = plan
  variables {
    bucket = "lake.example"
  }
  expect_failures = [var.bucket]
}

run "a_directory_bucket" {
  command = plan
  variables {
    bucket = "lake--use1-az4--x-s3"
  }
  expect_failures = [var.bucket]
}

run "a_prefix_that_begins_with_a_slash" {
  command = plan
  variables {
    prefix = "/lakehead"
  }
  expect_failures = [var.prefix]
}

run "a_prefix_of_tables_that_is_none" {
  command = plan
  variables {
    tables_prefix = "tables/"
  }
  expect_failures = [var.tables_prefix]
}

run "tables_within_the_cluster_s_prefix" {
  command = plan
  variables {
    tables_prefix = "lakehead/tables"
  }
  expect_failures = [var.tables_prefix]
}

run "an_alias_as_key" {
  command = plan
  variables {
    kms_key_arn = "alias/lake"
  }
  expect_failures = [var.kms_key_arn]
}

run "uploads_aborted_at_once" {
  command = plan
  variables {
    abort_multipart_days = 0
  }
  expect_failures = [var.abort_multipart_days]
}

run "logs_into_the_bucket_itself" {
  command = plan
  variables {
    access_log_bucket = "lake-bucket"
  }
  expect_failures = [var.access_log_bucket]
}

run "session_manager_without_endpoints" {
  command = plan
  variables {
    session_manager = true
  }
  expect_failures = [var.session_manager]
}

run "an_unknown_mode" {
  command = plan
  variables {
    wal_mode = "io1"
  }
  expect_failures = [var.wal_mode]
}

run "a_block_wal_over_zones" {
  command = plan
  variables {
    wal_mode = "gp3"
    zones    = ["us-east-1a", "us-east-1b", "us-east-1c"]
  }
  expect_failures = [var.wal_mode]
}

run "multi_attach_without_a_second_host" {
  command = plan
  variables {
    wal_mode = "io2-multi-attach"
  }
  expect_failures = [var.wal_mode]
}

run "multi_attach_in_an_unsupported_region" {
  command = plan
  variables {
    wal_mode             = "io2-multi-attach"
    hosts_per_zone       = 2
    multi_attach_regions = ["us-west-2"]
  }
  expect_failures = [var.wal_mode]
}

run "a_volume_under_the_minimum" {
  command = plan
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
    wal_volume     = { gib = 3 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "a_volume_over_the_maximum" {
  command = plan
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
    wal_volume     = { gib = 65537 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "io2_with_too_few_iops" {
  command = plan
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
    wal_volume     = { iops = 99 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "io2_with_too_many_iops" {
  command = plan
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
    wal_volume     = { gib = 1000, iops = 256001 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "io2_with_too_many_iops_for_its_size" {
  command = plan
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
    wal_volume     = { gib = 4, iops = 4001 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "io2_with_a_throughput" {
  command = plan
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
    wal_volume     = { mib_per_second = 250 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "gp3_with_too_few_iops" {
  command = plan
  variables {
    wal_mode   = "gp3"
    wal_volume = { iops = 500 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "gp3_with_too_many_iops_for_its_size" {
  command = plan
  variables {
    wal_mode   = "gp3"
    wal_volume = { gib = 10, iops = 6000 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "gp3_with_more_throughput_than_its_iops_allow" {
  command = plan
  variables {
    wal_mode   = "gp3"
    wal_volume = { mib_per_second = 1000 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "volumes_of_an_object_wal" {
  command = plan
  variables {
    wal_volume = { iops = 3000 }
  }
  expect_failures = [var.wal_volume, check.hosts_run_the_settings]
}

run "too_many_takers" {
  command = plan
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
    wal_takers     = 13
  }
  expect_failures = [var.wal_takers, check.hosts_run_the_settings]
}

run "no_taker" {
  command = plan
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
    wal_takers     = 0
  }
  expect_failures = [var.wal_takers, check.hosts_run_the_settings]
}

run "a_budget_below_nothing" {
  command = plan
  variables {
    wal_puts_budget = -1
  }
  expect_failures = [var.wal_puts_budget]
}

run "a_zone_as_region" {
  command = plan
  variables {
    multi_attach_regions = ["us-east-1a"]
  }
  expect_failures = [var.multi_attach_regions]
}

run "a_role_that_nobody_may_take" {
  command = plan
  variables {
    spark = {}
  }
  expect_failures = [var.spark, check.hosts_run_the_settings]
}

run "a_service_of_spark_that_is_none" {
  command = plan
  variables {
    spark = { services = ["emr"] }
  }
  expect_failures = [var.spark, check.hosts_run_the_settings]
}

run "a_role_of_spark_that_is_no_arn" {
  command = plan
  variables {
    spark = { role_arns = ["databricks"] }
  }
  expect_failures = [var.spark, check.hosts_run_the_settings]
}

run "a_glue_database_with_a_hyphen" {
  command = plan
  variables {
    spark = { services = ["ec2.amazonaws.com"], glue_database = "my-lake" }
  }
  expect_failures = [var.spark, check.hosts_run_the_settings]
}

run "airflow_without_packages_in_s3" {
  command = plan
  variables {
    lakehead_wheel      = "https://packages.example/lakehead-1.0-py3-none-any.whl"
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
    interface_endpoints = ["secretsmanager"]
  }
  expect_failures = [var.airflow_host]
}

run "airflow_that_cannot_tell_its_password" {
  command = plan
  variables {
    security     = { protocol = "PLAINTEXT" }
    airflow_host = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  expect_failures = [var.airflow_host]
}

run "airflow_dags_that_are_no_object" {
  command = plan
  variables {
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", dags = "[]" }
    interface_endpoints = ["secretsmanager"]
  }
  expect_failures = [var.airflow_host]
}

run "airflow_on_a_small_disk" {
  command = plan
  variables {
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", root_gib = 8 }
    interface_endpoints = ["secretsmanager"]
  }
  expect_failures = [var.airflow_host]
}

run "airflow_on_a_port_of_root" {
  command = plan
  variables {
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", port = 80 }
    interface_endpoints = ["secretsmanager"]
  }
  expect_failures = [var.airflow_host]
}

run "databricks_without_an_external_id" {
  command = plan
  variables {
    spark = { databricks = { external_id = "" } }
  }
  expect_failures = [var.spark, check.hosts_run_the_settings]
}

run "a_service_of_airflow_that_is_none" {
  command = plan
  variables {
    airflow_services = ["airflow"]
  }
  expect_failures = [var.airflow_services, check.hosts_run_the_settings]
}

run "a_topic_that_is_no_arn" {
  command = plan
  variables {
    alarm_topic_arns = ["alarms"]
  }
  expect_failures = [var.alarm_topic_arns, check.hosts_run_the_settings]
}

run "topics_without_alarms" {
  command = plan
  variables {
    observability    = false
    alarm_topic_arns = ["arn:aws:sns:us-east-1:123456789012:alarms"]
  }
  expect_failures = [var.alarm_topic_arns, check.hosts_run_the_settings]
}

run "traffic_below_nothing" {
  command = plan
  variables {
    expected_traffic = { mib_per_second = -1 }
  }
  expect_failures = [var.expected_traffic, check.hosts_run_the_settings]
}

run "io2_prices_of_two_steps" {
  command = plan
  variables {
    prices = { io2_iops = [0.065, 0.046] }
  }
  expect_failures = [var.prices, check.hosts_run_the_settings]
}

run "an_unknown_bootstrap" {
  command = plan
  variables {
    bootstrap = "alb"
  }
  expect_failures = [var.bootstrap, check.hosts_run_the_settings]
}

run "a_zone_of_names_with_a_space" {
  command = plan
  variables {
    bootstrap      = "dns"
    bootstrap_zone = "my zone"
  }
  expect_failures = [var.bootstrap_zone, check.hosts_run_the_settings]
}

run "a_zone_of_names_without_dns" {
  command = plan
  variables {
    bootstrap_zone = "lake.internal"
  }
  expect_failures = [var.bootstrap_zone, check.hosts_run_the_settings]
}

run "express_for_a_block_wal" {
  command = plan
  variables {
    wal_mode    = "gp3"
    wal_express = true
  }
  expect_failures = [var.wal_express]
}

run "express_over_zones" {
  command = plan
  variables {
    zones       = ["us-east-1a", "us-east-1b", "us-east-1c"]
    wal_express = true
  }
  expect_failures = [var.wal_express]
}

run "a_name_too_long_for_express" {
  command = plan
  variables {
    bucket      = "a-bucket-with-a-name-of-forty-three-letters"
    wal_express = true
  }
  expect_failures = [var.wal_express]
}

run "zones_of_express_by_name" {
  command = plan
  variables {
    express_zone_ids = ["us-east-1a"]
  }
  expect_failures = [var.express_zone_ids]
}

run "a_name_for_hosts_that_come_and_go" {
  command = plan
  variables {
    zones     = ["us-east-1a", "us-east-1b", "us-east-1c"]
    scaling   = { min = 3, max = 6 }
    bootstrap = "dns"
  }
  expect_failures = [var.bootstrap, check.hosts_run_the_settings]
}

run "a_release_of_amazons_image_beside_another_image" {
  command = plan
  variables {
    ami_id      = "ami-0123456789abcdef0"
    ami_release = "2026-11"
  }
  expect_failures = [var.ami_release, check.hosts_run_the_settings]
}
