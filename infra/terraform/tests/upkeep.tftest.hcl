# An apply stops no broker, whatever was changed, and says which hosts are to be replaced.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  hosts_per_zone = 2
  wal_mode       = "gp3"
  observability  = false
  # For the module of brokers alone.
  name              = "lakehead"
  tags              = { team = "lake" }
  slots             = { a-0 = { zone = "us-east-1a", subnet_id = "subnet-0123abcd", node_id = 0 } }
  instance_type     = "m7i.large"
  root_gib          = 16
  nodes_per_host    = 0
  node_ids_per_host = 100
  security_group_id = "sg-0123abcd"
  prefix            = "lakehead"
  kms_key_arn       = null
  wal_uris          = { a-0 = "block:ebs:a-0" }
  wal_volume_ids    = { a-0 = "vol-0123456789abcdef0" }
  kafka_port        = 9092
  metrics_port      = 9404
  settings          = {}
  session_manager   = false
}

run "a_host_is_made" {
  module {
    source = "./modules/brokers"
  }
  variables {
    kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
  }
  assert {
    condition     = aws_instance.host["a-0"].tags["lakehead:revision"] == output.revisions["a-0"].next && aws_instance.host["a-0"].tags["lakehead:wal-mode"] == "gp3"
    error_message = "its tags say of what"
  }
}

run "whatever_was_changed_it_goes_on" {
  module {
    source = "./modules/brokers"
  }
  variables {
    kms_key_arn        = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
    volume_kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/11111111-0000-0000-0000-000000000000"
    lakehead_wheel     = "s3://packages/lakehead/lakehead-2.0-py3-none-any.whl"
    settings           = { "log.retention.ms" = "86400000" }
    instance_type      = "m7i.xlarge"
    ami_id             = "ami-0123456789abcdef9"
    slots              = { a-0 = { zone = "us-east-1a", subnet_id = "subnet-9999abcd", node_id = 0 } }
    wal_uris           = { a-0 = "object:" }
    wal_mode           = "object"
    wal_volume_ids     = {}
  }
  assert {
    condition     = aws_instance.host["a-0"].id == run.a_host_is_made.instance_ids["a-0"] && aws_instance.host["a-0"].user_data == run.a_host_is_made.user_data["a-0"]
    error_message = "the instance has the user data that it was made with"
  }
  assert {
    condition     = aws_instance.host["a-0"].instance_type == "m7i.large" && aws_instance.host["a-0"].ami == run.a_host_is_made.ami_id && one(aws_instance.host["a-0"].root_block_device).kms_key_id != var.volume_kms_key_arn
    error_message = "type, image and key of its root volume would stop or replace it"
  }
  assert {
    condition     = aws_network_interface.host["a-0"].subnet_id == "subnet-0123abcd"
    error_message = "another subnet would take its interface away"
  }
  assert {
    condition     = aws_instance.host["a-0"].tags["lakehead:revision"] == run.a_host_is_made.revisions["a-0"].next && output.revisions["a-0"].next != run.a_host_is_made.revisions["a-0"].next
    error_message = "its tag says what it was made of, and the output what it would be made of"
  }
}

run "hosts_of_another_revision_are_named" {
  override_resource {
    target = module.brokers.aws_instance.host
    values = { id = "i-0123456789abcdef0", tags_all = { "lakehead:revision" = "before", "lakehead:wal-mode" = "gp3" } }
  }
  expect_failures = [check.hosts_are_as_configured]
}

run "a_wal_mode_does_not_change_under_hosts" {
  command = plan
  variables {
    wal_mode = "object"
  }
  expect_failures = [terraform_data.guard, check.hosts_are_as_configured, check.hosts_run_the_settings]
}

run "nor_does_the_kind_of_disk" {
  command = plan
  variables {
    wal_mode = "io2-multi-attach"
  }
  expect_failures = [terraform_data.guard, check.hosts_are_as_configured]
}
