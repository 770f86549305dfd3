# Volumes, attachments, node ids in each mode.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  security = { protocol = "PLAINTEXT" } # so that what needs a way is what a run names
}

run "io2_is_attached_to_the_hosts_before_it" {
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 4
  }
  assert {
    condition     = length(output.wal_volumes) == 4 && alltrue([for volume in output.wal_volumes : volume.type == "io2" && volume.multi_attach && volume.encrypted && volume.iops == 500 && volume.zone == "us-east-1a"])
    error_message = "an encrypted io2 volume of 500 IOPS for each host"
  }
  assert {
    condition = { for slot in keys(output.wal_volumes) : slot => join(" ", sort([for attachment in output.wal_attachments : attachment.host if attachment.volume == slot])) } == {
      a-0 = "a-1 a-2", a-1 = "a-0 a-2", a-2 = "a-0 a-1", a-3 = "a-1 a-2"
    }
    error_message = "two takers of each, never the host itself: ${jsonencode(output.wal_attachments)}"
  }
  assert {
    condition     = alltrue([for attachment in output.wal_attachments : attachment.device == output.wal_volumes[attachment.volume].tags["lakehead:device"]])
    error_message = "Terraform and hosts attach a volume under the same name"
  }
  assert {
    condition     = alltrue([for slot, volume in output.wal_volumes : volume.tags["lakehead:cluster"] == "lakehead" && volume.tags["lakehead:wal"] == slot])
    error_message = "volumes carry cluster and slot"
  }
  assert {
    condition     = output.hosts["a-2"].wal == "block:ebs:a-2?format=yes&grow=yes" && output.hosts["a-2"].node_id == 200
    error_message = "the WAL is named by the host's slot: ${output.hosts["a-2"].wal}"
  }
  assert {
    condition     = strcontains(module.brokers.user_data["a-0"], "[ -n \"CAP_SYS_ADMIN\" ] || exit 0") && strcontains(module.brokers.user_data["a-0"], "ATTRS{serial}==\\\"vol*\\\"")
    error_message = "reservations need a disk, and their capability where the kernel asks for it"
  }
}

run "a_host_more_changes_no_attachment" {
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 5
  }
  assert {
    condition     = alltrue([for key, attachment in run.io2_is_attached_to_the_hosts_before_it.wal_attachments : output.wal_attachments[key] == attachment])
    error_message = "what four hosts had, five have"
  }
  assert {
    condition     = length(output.wal_attachments) == 10
    error_message = "and the fifth volume has two takers"
  }
}

run "as_many_takers_as_an_instance_bears" {
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 50
    wal_takers     = 12
  }
  assert {
    condition     = alltrue([for slot in keys(output.wal_volumes) : length([for attachment in output.wal_attachments : 1 if attachment.volume == slot]) == 12])
    error_message = "12 takers of each volume"
  }
  assert {
    condition     = alltrue([for host in keys(output.hosts) : length([for attachment in output.wal_attachments : 1 if attachment.host == host]) <= 24])
    error_message = "24 volumes of others on a host"
  }
  assert {
    condition     = length(distinct([for volume in output.wal_volumes : volume.tags["lakehead:device"]])) == 50 && alltrue([for volume in output.wal_volumes : can(regex("^/dev/(sd[f-p]|xvd[bc][a-z])$", volume.tags["lakehead:device"]))])
    error_message = "a name for each, of those that EC2 takes"
  }
}

run "gp3_is_attached_by_hosts_alone" {
  variables {
    wal_mode       = "gp3"
    hosts_per_zone = 2
  }
  assert {
    condition     = alltrue([for volume in output.wal_volumes : volume.type == "gp3" && !volume.multi_attach && volume.iops == 3000])
    error_message = "gp3 volumes"
  }
  assert {
    condition     = length(output.wal_attachments) == 0
    error_message = "where a gp3 volume is, brokers decide: Terraform would take it back"
  }
  assert {
    condition     = output.hosts["a-0"].wal == "block:ebs:a-0?format=yes&grow=yes" && !strcontains(module.brokers.user_data["a-0"], "CAP_SYS_ADMIN")
    error_message = "brokers find it by its slot, without reservations"
  }
}

run "removed_volumes_leave_a_snapshot_unless_data_may_go" {
  variables {
    wal_mode      = "gp3"
    force_destroy = true
  }
  assert {
    condition     = run.gp3_is_attached_by_hosts_alone.wal_volumes["a-0"].final_snapshot && !output.wal_volumes["a-0"].final_snapshot
    error_message = "a volume may hold what was never uploaded"
  }
}

run "hosts_of_a_block_wal_may_move_the_cluster_s_volumes" {
  variables {
    wal_mode = "gp3"
  }
  assert {
    condition = toset(flatten([for statement in jsondecode(output.broker_policy_json).Statement : statement.Action if !startswith(statement.Action[0], "s3:")])) == toset([
      "kms:GenerateDataKey", "kms:Decrypt", "ec2:DescribeVolumes", "ec2:DescribeInstances", "ec2:AttachVolume", "ec2:DetachVolume", "kms:CreateGrant",
    ])
    error_message = output.broker_policy_json
  }
  assert {
    condition     = [for statement in jsondecode(output.broker_policy_json).Statement : statement.Action if statement.Resource == "*"] == [["ec2:DescribeVolumes", "ec2:DescribeInstances"]]
    error_message = "what is about everything only looks"
  }
  assert {
    condition = alltrue([
      for statement in jsondecode(output.broker_policy_json).Statement :
      statement.Condition.StringEquals["aws:ResourceTag/lakehead:cluster"] == "lakehead" if contains(statement.Action, "ec2:AttachVolume")
    ])
    error_message = "only the cluster's own volumes and instances"
  }
}

run "multi_attach_detaches_nothing" {
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
  }
  assert {
    condition     = strcontains(output.broker_policy_json, "ec2:AttachVolume") && !strcontains(output.broker_policy_json, "ec2:DetachVolume")
    error_message = "a shared volume is fenced, not detached"
  }
}

run "a_block_wal_without_the_endpoint" {
  variables {
    wal_mode     = "gp3"
    ec2_endpoint = false
  }
  assert {
    condition     = length(output.interface_endpoints) == 0
    error_message = "it may be left out"
  }
}

run "a_block_wal_has_a_way_to_ec2" {
  variables {
    wal_mode = "gp3"
  }
  assert {
    condition     = output.interface_endpoints == toset(["ec2"]) && module.security.https_egress == { endpoints = "10.42.0.0/16" }
    error_message = "an endpoint, and the group lets hosts reach it"
  }
  assert {
    condition     = abs(output.monthly_cost_estimate.fixed - run.a_block_wal_without_the_endpoint.monthly_cost_estimate.fixed - 7.3) < 0.001
    error_message = "which the estimate has"
  }
}

run "an_existing_vpc_has_its_own_way_to_ec2" {
  state_key = "an_existing_vpc_has_its_own_way_to_ec2"
  variables {
    wal_mode     = "gp3"
    existing_vpc = { vpc_id = "vpc-0123abcd", subnet_ids = { us-east-1a = "subnet-0123abcd" }, services = "endpoints" }
  }
  assert {
    condition     = length(output.interface_endpoints) == 0 && module.security.https_egress == { endpoints = "10.20.0.0/16", "endpoints-100.64.0.0/16" = "100.64.0.0/16" }
    error_message = "no endpoint is made there; hosts may reach one that is"
  }
}

run "node_ids_stay_when_hosts_are_added" {
  state_key = "node_ids_stay_when_hosts_are_added"
  variables {
    zones          = ["us-east-1a", "us-east-1b", "us-east-1d"]
    hosts_per_zone = 2
  }
  assert {
    condition     = { for slot, host in output.hosts : slot => host.node_id } == { "a-0" = 0, "b-0" = 100, "d-0" = 200, "a-1" = 300, "b-1" = 400, "d-1" = 500 }
    error_message = "the second host of each zone comes after all first ones"
  }
}

run "express" {
  variables {
    wal_express = true
  }
  assert {
    condition     = output.hosts["a-0"].wal == "object:s3://lake-bucket-wal--use1-az4--x-s3/lakehead?region=us-east-1&budget=50&put_price=0.00113"
    error_message = "the log is in a bucket of its own: ${output.hosts["a-0"].wal}"
  }
  assert {
    condition     = [for statement in jsondecode(output.broker_policy_json).Statement : statement.Resource if statement.Action == ["s3express:CreateSession"]] == ["arn:aws:s3express:us-east-1:123456789012:bucket/lake-bucket-wal--use1-az4--x-s3"]
    error_message = "hosts may use that bucket: ${output.broker_policy_json}"
  }
}
