# The group of hosts that come and go, by itself.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name  = "lake"
  tags  = { "lakehead:cluster" = "lake", "lakehead:bucket" = "lake-bucket" }
  hosts = { min = 2, max = 8 }
  slots = {
    a-0 = { zone = "us-east-1a", subnet_id = "subnet-a", node_id = 0 }
    a-1 = { zone = "us-east-1a", subnet_id = "subnet-a", node_id = 200 }
    b-0 = { zone = "us-east-1b", subnet_id = "subnet-b", node_id = 100 }
  }
  instance_types        = ["m7i.large", "m6i.large"]
  on_demand_base        = 2
  spot_percent          = 75
  mib_per_second        = 40
  cpu_percent           = 70
  ami_id                = "ami-0123456789abcdef0"
  architecture          = "x86_64"
  root_gib              = 16
  user_data             = "#cloud-config\n"
  nodes_per_host        = 0
  node_ids_per_host     = 100
  security_group_id     = "sg-0123abcd"
  role_name             = "lake-broker"
  instance_profile_name = "lake-broker"
}

run "an_image_that_is_deprecated_is_found" {
  command = plan
  module {
    source = "./modules/elastic"
  }
  assert {
    condition     = data.aws_ami.this.include_deprecated
    error_message = "EC2 lists deprecated images for those who want them only"
  }
}

run "the_group" {
  module {
    source = "./modules/elastic"
  }
  assert {
    condition     = aws_network_interface.slot["a-1"].tags == tomap({ Name = "lake-a-1", "lakehead:cluster" = "lake", "lakehead:bucket" = "lake-bucket", "lakehead:slot" = "a-1", "lakehead:node-id" = "200" })
    error_message = "an interface says which slot it is"
  }
  assert {
    condition     = alltrue([for one in aws_launch_template.host.tag_specifications : !contains(keys(one.tags), "lakehead:slot")])
    error_message = "what an instance brings is no slot"
  }
  assert {
    condition     = toset(aws_autoscaling_group.hosts.vpc_zone_identifier) == toset(["subnet-a", "subnet-b"]) && aws_autoscaling_group.hosts.min_size == 2 && aws_autoscaling_group.hosts.max_size == 8
    error_message = "one group over all zones"
  }
  assert {
    condition     = contains([for tag in aws_autoscaling_group.hosts.tag : "${tag.key}=${tag.value}" if tag.propagate_at_launch], "lakehead:group=lake") && contains([for tag in aws_autoscaling_group.hosts.tag : "${tag.key}=${tag.value}" if tag.propagate_at_launch], "lakehead:cluster=lake")
    error_message = "an instance shows its cluster and its group"
  }
  assert {
    condition     = aws_launch_template.host.metadata_options[0].http_tokens == "required" && aws_launch_template.host.metadata_options[0].instance_metadata_tags == "enabled" && aws_launch_template.host.monitoring[0].enabled
    error_message = "metadata by IMDSv2 with tags, a sample each minute"
  }
  assert {
    condition     = aws_autoscaling_group.hosts.mixed_instances_policy[0].instances_distribution[0].on_demand_base_capacity == 2 && aws_autoscaling_group.hosts.mixed_instances_policy[0].instances_distribution[0].on_demand_percentage_above_base_capacity == 25 && aws_autoscaling_group.hosts.capacity_rebalance
    error_message = "two on demand, of the rest three quarters spot, replaced ahead"
  }
  assert {
    condition     = { for hook in aws_autoscaling_group.hosts.initial_lifecycle_hook : hook.name => "${hook.lifecycle_transition} ${hook.default_result} ${hook.heartbeat_timeout}" } == { lakehead-serving = "autoscaling:EC2_INSTANCE_LAUNCHING ABANDON 900", lakehead-ending = "autoscaling:EC2_INSTANCE_TERMINATING CONTINUE 300" }
    error_message = "the hooks that nodes complete are there before the first instance, which may be ended during the first apply"
  }
  assert {
    condition     = aws_autoscaling_group.hosts.instance_maintenance_policy[0].min_healthy_percentage == 100 && aws_autoscaling_group.hosts.instance_maintenance_policy[0].max_healthy_percentage == 110
    error_message = "of hosts that all say that they are not healthy, none is ended before another serves"
  }
  assert {
    condition     = length(aws_autoscaling_group.hosts.instance_refresh[0].preferences[0].alarm_specification) == 0
    error_message = "no alarm undoes a refresh unless one is named"
  }
  assert {
    condition     = { for key, policy in aws_autoscaling_policy.target : key => policy.target_tracking_configuration[0].target_value } == { cpu = 70, network-in = 2516582400, network-out = 2516582400 }
    error_message = "40 MiB/s are 2,516,582,400 bytes a minute"
  }
  assert {
    condition     = aws_autoscaling_group.hosts.instance_refresh[0].preferences[0].min_healthy_percentage == 100 && aws_autoscaling_group.hosts.instance_refresh[0].preferences[0].auto_rollback
    error_message = "a new host serves before an old one leaves"
  }
  assert {
    condition     = [for statement in jsondecode(output.scaling_policy_json).Statement : statement.Action] == [["ec2:DescribeNetworkInterfaces"], ["ec2:AttachNetworkInterface"], ["autoscaling:CompleteLifecycleAction", "autoscaling:SetInstanceHealth"]]
    error_message = "nothing is detached, nothing made"
  }
  assert {
    condition     = jsondecode(output.scaling_policy_json).Statement[1].Condition.StringEquals["aws:ResourceTag/lakehead:cluster"] == "lake" && endswith(jsondecode(output.scaling_policy_json).Statement[2].Resource, ":autoScalingGroupName/lake")
    error_message = "of the cluster, and of its group only"
  }
}

run "another_architecture" {
  command = plan
  module {
    source = "./modules/elastic"
  }
  override_data {
    target = data.aws_ec2_instance_type.each
    values = { hypervisor = "nitro", bare_metal = false, default_vcpus = 2, supported_architectures = ["arm64"], maximum_network_interfaces = 3 }
  }
  expect_failures = [data.aws_ec2_instance_type.each]
}

run "a_type_with_one_interface" {
  command = plan
  module {
    source = "./modules/elastic"
  }
  override_data {
    target = data.aws_ec2_instance_type.each
    values = { hypervisor = "nitro", bare_metal = false, default_vcpus = 2, supported_architectures = ["x86_64"], maximum_network_interfaces = 1 }
  }
  expect_failures = [data.aws_ec2_instance_type.each]
}

run "a_type_with_more_cores_than_node_ids" {
  command = plan
  module {
    source = "./modules/elastic"
  }
  override_data {
    target = data.aws_ec2_instance_type.each
    values = { hypervisor = "nitro", bare_metal = false, default_vcpus = 192, supported_architectures = ["x86_64"], maximum_network_interfaces = 15 }
  }
  expect_failures = [data.aws_ec2_instance_type.each]
}

run "user_data_that_is_too_long" {
  command = plan
  module {
    source = "./modules/elastic"
  }
  variables {
    user_data = join("", [for number in range(1000) : "debug debug debug debug"])
  }
  expect_failures = [aws_launch_template.host]
}

run "a_refresh_that_alarms_undo" {
  command = plan
  module {
    source = "./modules/elastic"
  }
  variables {
    refresh_alarms = ["lake-offline-partitions"]
  }
  assert {
    condition     = one(aws_autoscaling_group.hosts.instance_refresh[0].preferences[0].alarm_specification).alarms == tolist(["lake-offline-partitions"])
    error_message = "a release that serves and then loses partitions is not rolled on"
  }
}
