# A host is a slot: a network interface with an address and node ids that stay. A group starts
# instances, and each attaches a free slot of its zone to itself (`lakehead slot claim`).

locals {
  metrics = merge(
    { network-in = "ASGAverageNetworkIn", network-out = "ASGAverageNetworkOut" },
    var.cpu_percent == null ? {} : { cpu = "ASGAverageCPUUtilization" }
  )
  # With a sample each minute, the group's average is bytes a minute of a host.
  bytes_per_minute = var.mib_per_second * 1048576 * 60
}

# Asked for its conditions alone.
# tflint-ignore: terraform_unused_declarations
data "aws_ec2_instance_type" "each" {
  for_each      = toset(var.instance_types)
  instance_type = each.key

  lifecycle {
    postcondition {
      condition     = self.bare_metal || self.hypervisor == "nitro"
      error_message = "Instance type ${each.key} is not built on Nitro, and may not take an interface while it runs. Choose a newer one, such as m7i.large."
    }
    postcondition {
      condition     = contains(self.supported_architectures, var.architecture)
      error_message = "Instance type ${each.key} is not ${var.architecture}, as instance_type is: all hosts have one image and one package. Choose types of one architecture."
    }
    postcondition {
      condition     = self.maximum_network_interfaces >= 2
      error_message = "Instance type ${each.key} takes one network interface only, and a slot is a second one. Choose a larger type."
    }
    postcondition {
      condition     = var.nodes_per_host > 0 || self.default_vcpus <= var.node_ids_per_host
      error_message = "Instance type ${each.key} has more cores than a host has node ids (${var.node_ids_per_host}). Give nodes_per_host a number, or choose a smaller type."
    }
  }
}

# The image's own name of its root volume; only its size and encryption are ours. The image of the
# first apply is kept, so it is deprecated sooner or later, and EC2 then leaves it out of lists.
data "aws_ami" "this" {
  include_deprecated = true

  filter {
    name   = "image-id"
    values = [var.ami_id]
  }
}

resource "aws_network_interface" "slot" {
  for_each        = var.slots
  subnet_id       = each.value.subnet_id
  security_groups = [var.security_group_id]
  description     = "Lakehead ${var.name} ${each.key}"

  tags = merge(var.tags, {
    Name               = "${var.name}-${each.key}"
    "lakehead:slot"    = each.key
    "lakehead:node-id" = tostring(each.value.node_id)
  })
}

resource "aws_launch_template" "host" {
  name_prefix            = "${var.name}-"
  description            = "Hosts of Lakehead ${var.name}"
  update_default_version = true
  image_id               = var.ami_id
  instance_type          = var.instance_types[0]
  ebs_optimized          = true
  user_data              = base64encode(var.user_data)
  vpc_security_group_ids = [var.security_group_id]
  tags                   = merge(var.tags, { Name = var.name })

  iam_instance_profile {
    name = var.instance_profile_name
  }

  # A sample each minute: by five minutes' samples the group would follow a load ten minutes late.
  monitoring {
    enabled = true
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "enabled" # cluster and group
  }

  # By AWS's own key of EBS. With one of the account's, the group's service-linked role would need a
  # grant of it to start instances, and there is nothing on this volume but packages and logs.
  block_device_mappings {
    device_name = data.aws_ami.this.root_device_name

    ebs {
      volume_type           = "gp3"
      volume_size           = var.root_gib
      encrypted             = true
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.key
      # An instance's own first interface is no slot, and its tags say so by saying no slot.
      tags = merge(var.tags, { Name = "${var.name}-host" })
    }
  }

  lifecycle {
    precondition {
      condition     = length(base64encode(var.user_data)) <= 21844 # of 16,383 bytes; length counts characters
      error_message = "User data is longer than EC2's 16 KiB. Choose a shorter name, prefix or address of the package."
    }
  }
}

resource "aws_autoscaling_group" "hosts" {
  name                      = var.name
  min_size                  = var.hosts.min
  max_size                  = var.hosts.max
  vpc_zone_identifier       = distinct([for slot in sort(keys(var.slots)) : var.slots[slot].subnet_id])
  health_check_type         = "EC2" # and what hosts say of themselves, by SetInstanceHealth
  health_check_grace_period = 60
  default_instance_warmup   = 120
  capacity_rebalance        = var.spot_percent > 0
  termination_policies      = ["AllocationStrategy", "OldestLaunchTemplate", "Default"]
  enabled_metrics           = ["GroupDesiredCapacity", "GroupInServiceInstances", "GroupMaxSize", "GroupMinSize"]
  wait_for_capacity_timeout = "20m"

  mixed_instances_policy {
    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.host.id
        version            = aws_launch_template.host.latest_version
      }

      dynamic "override" {
        for_each = var.instance_types

        content {
          instance_type = override.value
        }
      }
    }

    instances_distribution {
      on_demand_allocation_strategy            = "prioritized"
      on_demand_base_capacity                  = var.on_demand_base
      on_demand_percentage_above_base_capacity = 100 - var.spot_percent
      spot_allocation_strategy                 = "price-capacity-optimized"
    }
  }

  # Of an instance that is not healthy, by EC2 or by the word of its own nodes, the next one serves
  # first. Should all say so at once, none is ended before another serves.
  instance_maintenance_policy {
    min_healthy_percentage = 100
    max_healthy_percentage = 110
  }

  # An instance counts once its nodes serve; one whose nodes do not is replaced after the time. Hooks
  # given here are there before the first instance is, and until the last one is gone.
  initial_lifecycle_hook {
    name                 = "lakehead-serving"
    lifecycle_transition = "autoscaling:EC2_INSTANCE_LAUNCHING"
    default_result       = "ABANDON"
    heartbeat_timeout    = 900
  }

  # Before the group ends an instance, its nodes hand over and upload what they have: a minute or two.
  initial_lifecycle_hook {
    name                 = "lakehead-ending"
    lifecycle_transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    default_result       = "CONTINUE"
    heartbeat_timeout    = 300
  }

  # A changed launch template: a new host serves before an old one leaves, one after the other. If
  # new ones do not come to serve, the old template is brought back.
  instance_refresh {
    strategy = "Rolling"

    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 110
      auto_rollback          = true
      skip_matching          = true
      checkpoint_percentages = [20, 100]
      checkpoint_delay       = 600

      dynamic "alarm_specification" {
        for_each = length(var.refresh_alarms) > 0 ? ["given"] : []

        content {
          alarms = var.refresh_alarms
        }
      }
    }
  }

  dynamic "tag" {
    for_each = merge(var.tags, { Name = "${var.name}-host", "lakehead:group" = var.name })

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  timeouts {
    delete = "20m"
  }

  # Instances need slots and permissions as long as they run.
  depends_on = [aws_network_interface.slot, aws_iam_role_policy.scaling]
}

# Hosts are added when one of these asks for it, and taken away when none objects.
resource "aws_autoscaling_policy" "target" {
  for_each               = local.metrics
  name                   = "${var.name}-${each.key}"
  autoscaling_group_name = aws_autoscaling_group.hosts.name
  policy_type            = "TargetTrackingScaling"

  target_tracking_configuration {
    target_value = each.key == "cpu" ? var.cpu_percent : local.bytes_per_minute

    predefined_metric_specification {
      predefined_metric_type = each.value
    }
  }
}
