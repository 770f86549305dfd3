# Checks that ask AWS first: instance types, subnets; and what only a module can show.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name              = "lakehead"
  tags              = { "lakehead:cluster" = "lakehead" }
  slots             = { a-0 = { zone = "us-east-1a", subnet_id = "subnet-0123abcd", node_id = 0 } }
  instance_type     = "m7i.large"
  root_gib          = 16
  nodes_per_host    = 0
  node_ids_per_host = 100
  security_group_id = "sg-0123abcd"
  prefix            = "lakehead"
  kms_key_arn       = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
  wal_uris          = { a-0 = "object:" }
  wal_mode          = "object"
  wal_volume_ids    = {}
  kafka_port        = 9092
  metrics_port      = 9404
  settings          = {}
  lakehead_wheel    = "s3://packages/lakehead-1.0-py3-none-any.whl"
  session_manager   = false
}

run "an_instance_type_that_is_not_built_on_nitro" {
  command = plan
  module {
    source = "./modules/brokers"
  }
  override_data {
    target = data.aws_ec2_instance_type.this
    values = { hypervisor = "xen", bare_metal = false, default_vcpus = 2, supported_architectures = ["x86_64"] }
  }
  expect_failures = [data.aws_ec2_instance_type.this]
}

run "more_cores_than_node_ids" {
  command = plan
  module {
    source = "./modules/brokers"
  }
  override_data {
    target = data.aws_ec2_instance_type.this
    values = { hypervisor = "nitro", bare_metal = false, default_vcpus = 192, supported_architectures = ["x86_64"] }
  }
  expect_failures = [data.aws_ec2_instance_type.this]
}

run "user_data_of_letters_that_are_several_bytes" {
  module {
    source = "./modules/brokers"
  }
  variables {
    lakehead_wheel = "https://packages.example/${join("", [for number in range(600) : "üüüüüü"])}/lakehead-1.0-py3-none-any.whl"
  }
  expect_failures = [aws_instance.host]
}

run "a_host_without_a_volume" {
  command = plan
  module {
    source = "./modules/brokers"
  }
  variables {
    wal_mode       = "gp3"
    wal_volume_ids = { a-1 = "vol-0123456789abcdef0" }
  }
  expect_failures = [aws_instance.host]
}

# By `terraform_data`, which is not mocked: the image of the first apply, until the text changes.
run "the_first_image" {
  module {
    source = "./modules/brokers"
  }
  assert {
    condition     = output.ami_id == "ami-0123456789abcdef0"
    error_message = output.ami_id
  }
}

run "a_newer_image_is_not_taken" {
  module {
    source = "./modules/brokers"
  }
  override_data {
    target = data.aws_ssm_parameter.al2023
    values = { insecure_value = "ami-0123456789abcdef1" }
  }
  assert {
    condition     = output.ami_id == "ami-0123456789abcdef0"
    error_message = output.ami_id
  }
}

run "a_newer_image_is_taken_for_the_asking" {
  module {
    source = "./modules/brokers"
  }
  variables {
    ami_release = "2026-11"
  }
  override_data {
    target = data.aws_ssm_parameter.al2023
    values = { insecure_value = "ami-0123456789abcdef1" }
  }
  assert {
    condition     = output.ami_id == "ami-0123456789abcdef1"
    error_message = output.ami_id
  }
}

run "racks_are_ids_of_zones" {
  module {
    source = "./modules/brokers"
  }
  variables {
    slots = {
      a-0 = { zone = "us-east-1a", subnet_id = "subnet-0123abcd", node_id = 0 }
      b-0 = { zone = "us-east-1b", subnet_id = "subnet-0123abce", node_id = 100 }
    }
    wal_uris = { a-0 = "object:", b-0 = "object:" }
  }
  override_data {
    target = data.aws_availability_zone.each["us-east-1b"]
    values = { zone_id = "use1-az6" }
  }
  assert {
    condition     = output.racks == { a-0 = "use1-az4", b-0 = "use1-az6" } && strcontains(output.identity_toml["b-0"], "\"broker.rack\" = \"use1-az6\"\n") && !strcontains(output.identity_toml["b-0"], "us-east-1b")
    error_message = "names of zones differ by account: ${output.identity_toml["b-0"]}"
  }
}

run "a_host" {
  module {
    source = "./modules/brokers"
  }
  assert {
    condition     = aws_instance.host["a-0"].tags["lakehead:slot"] == "a-0" && aws_instance.host["a-0"].tags["lakehead:node-id"] == "0" && aws_instance.host["a-0"].tags["lakehead:cluster"] == "lakehead"
    error_message = "a host carries cluster, slot and node id"
  }
  assert {
    condition     = aws_instance.host["a-0"].metadata_options[0].http_tokens == "required" && aws_instance.host["a-0"].metadata_options[0].http_put_response_hop_limit == 1
    error_message = "metadata by IMDSv2 only, not beyond the host"
  }
  assert {
    condition     = aws_instance.host["a-0"].root_block_device[0].encrypted
    error_message = "the root volume is encrypted"
  }
  assert {
    condition     = strcontains(output.broker_policy_json, "arn:aws:s3:::packages/*")
    error_message = "a wheel that lies in no folder"
  }
}

run "subnets_of_another_zone" {
  command = plan
  module {
    source = "./modules/network"
  }
  variables {
    zones    = ["us-east-1b"]
    cidr     = "10.42.0.0/16"
    existing = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1b = "subnet-0123abcd" } }
  }
  expect_failures = [data.aws_subnet.existing]
}

run "a_new_network_has_no_way_out" {
  module {
    source = "./modules/network"
  }
  variables {
    zones               = ["us-east-1a", "us-east-1b", "us-east-1c"]
    cidr                = "10.42.0.0/16"
    interface_endpoints = ["ssm"]
  }
  assert {
    condition     = [for zone in var.zones : aws_subnet.private[zone].cidr_block] == ["10.42.0.0/20", "10.42.16.0/20", "10.42.32.0/20"]
    error_message = "a sixteenth for each zone"
  }
  assert {
    condition     = alltrue([for subnet in aws_subnet.private : subnet.map_public_ip_on_launch == false])
    error_message = "no public address"
  }
  assert {
    condition     = aws_vpc_endpoint.s3["s3"].service_name == "com.amazonaws.us-east-1.s3" && aws_vpc_endpoint.s3["s3"].vpc_endpoint_type == "Gateway"
    error_message = "S3 by a gateway endpoint"
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.endpoints[0].cidr_ipv4 == "10.42.0.0/16"
    error_message = "endpoints answer the VPC"
  }
}

run "a_bucket" {
  module {
    source = "./modules/storage"
  }
  variables {
    kms_key_arn = null
  }
  assert {
    condition     = aws_s3_bucket_versioning.this.versioning_configuration[0].status == "Disabled"
    error_message = "versioning is off"
  }
  assert {
    condition     = alltrue([aws_s3_bucket_public_access_block.this.block_public_acls, aws_s3_bucket_public_access_block.this.block_public_policy, aws_s3_bucket_public_access_block.this.ignore_public_acls, aws_s3_bucket_public_access_block.this.restrict_public_buckets])
    error_message = "nothing is public"
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default).sse_algorithm == "aws:kms"
    error_message = "encrypted by KMS"
  }
  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.this.rule) == 1 && aws_s3_bucket_lifecycle_configuration.this.rule[0].abort_incomplete_multipart_upload[0].days_after_initiation == 7
    error_message = "one rule of life cycle: it ends abandoned uploads"
  }
  assert {
    condition     = length(aws_kms_key.this) == 1 && aws_kms_key.this[0].enable_key_rotation
    error_message = "a key of its own, which is rotated"
  }
}

run "a_zone_without_express" {
  command = plan
  module {
    source = "./modules/storage"
  }
  variables {
    express_zone     = "us-east-1a"
    express_zone_ids = ["use1-az5"]
  }
  expect_failures = [data.aws_availability_zone.express]
}
