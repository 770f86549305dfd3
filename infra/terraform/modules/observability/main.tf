# CloudWatch has what it knows by itself: hosts and volumes. The brokers' own metrics are Prometheus
# pages: what finds them and what to be alarmed by comes as files for a Prometheus of yours.

locals {
  # An alarm of a name that is there is overwritten, and dashboards are the whole account's, of all
  # regions: so both carry what only one cluster in the world has, its bucket.
  unique = "${var.name}-${var.bucket}"

  targets = flatten([
    for slot in sort(tolist(var.slots)) : [
      for node in range(var.nodes_per_host) : "${var.addresses[slot]}:${var.metrics_port + node}"
    ]
  ])

  # A page for each node, found by the group that only brokers' instances are in.
  prometheus_config = templatefile("${path.module}/scrape.yaml.tftpl", {
    name = var.name
    discovery = jsonencode([
      for node in range(var.nodes_per_host) : {
        region           = data.aws_region.current.name
        port             = var.metrics_port + node
        refresh_interval = "60s"
        filters = [
          { name = "instance.group-id", values = [var.security_group_id] },
          { name = "instance-state-name", values = ["running"] },
        ]
      }
    ])
  })
  # Neither action can be narrowed to some instances.
  prometheus_policy_json = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "FindHosts"
      Effect    = "Allow"
      Action    = ["ec2:DescribeInstances", "ec2:DescribeAvailabilityZones"]
      Resource  = "*"
      Condition = { StringEquals = { "aws:RequestedRegion" = data.aws_region.current.name } }
    }]
  })

  instances = merge({ for slot in var.slots : slot => var.instance_ids[slot] }, var.other_instance_ids)

  host_metrics   = { CPUUtilization = "CPU (%)", NetworkIn = "Bytes in", NetworkOut = "Bytes out" }
  volume_metrics = { VolumeWriteOps = "WAL writes", VolumeWriteBytes = "WAL bytes", VolumeQueueLength = "WAL queue" }

  # Hosts of a group come and go: it is shown as one.
  dimensions = var.group != null ? [["AutoScalingGroupName", var.group.name, { label = var.group.name }]] : [
    for slot in sort(tolist(var.slots)) : ["InstanceId", var.instance_ids[slot], { label = slot }]
  ]
  host_widgets = [
    for metric, title in local.host_metrics : {
      type = "metric", width = 8, height = 6
      properties = {
        title   = title, region = data.aws_region.current.name, period = 60, stat = metric == "CPUUtilization" ? "Average" : "Sum"
        metrics = [for dimension in local.dimensions : concat(["AWS/EC2", metric], dimension)]
      }
    }
  ]
  group_widgets = [
    for group in var.group == null ? [] : [var.group] : {
      type = "metric", width = 8, height = 6
      properties = {
        title = "Hosts", region = data.aws_region.current.name, period = 60, stat = "Average"
        metrics = [for metric in ["GroupInServiceInstances", "GroupDesiredCapacity", "GroupMaxSize"] :
        ["AWS/AutoScaling", metric, "AutoScalingGroupName", group.name, { label = trimprefix(metric, "Group") }]]
      }
    }
  ]

  group_alarms = var.group == null ? {} : {
    few  = { metric = "GroupInServiceInstances", comparison = "LessThanThreshold", threshold = var.group.min, minutes = 10, why = "fewer hosts serve than its least number: instances do not come up, or there is no capacity" }
    full = { metric = "GroupDesiredCapacity", comparison = "GreaterThanOrEqualToThreshold", threshold = var.group.max, minutes = 30, why = "it has as many hosts as it may have: raise scaling's largest number, or take a larger instance type" }
  }
  volume_widgets = [
    for metric, title in local.volume_metrics : {
      type = "metric", width = 8, height = 6
      properties = {
        title   = title, region = data.aws_region.current.name, period = 60, stat = metric == "VolumeQueueLength" ? "Average" : "Sum"
        metrics = [for slot, id in var.volume_ids : ["AWS/EBS", metric, "VolumeId", id, { label = slot }]]
      }
    } if length(var.volume_ids) > 0
  ]
}

data "aws_region" "current" {}

resource "aws_cloudwatch_metric_alarm" "host" {
  for_each            = local.instances
  alarm_name          = "${local.unique}-${each.key}-status"
  alarm_description   = "Host ${each.key} of ${var.name} fails EC2's status checks, or tells nothing. Its nodes are taken over with an object WAL; see docs/operations.md, A machine is gone."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed"
  dimensions          = { InstanceId = each.value }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  period              = 60
  evaluation_periods  = 2
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = var.tags
}

# A volume that is stuck, not one that is slow: appends to its WAL wait.
resource "aws_cloudwatch_metric_alarm" "volume" {
  for_each            = length(var.volume_ids) > 0 ? var.slots : toset([])
  alarm_name          = "${local.unique}-${each.key}-volume"
  alarm_description   = "Host ${each.key} of ${var.name} cannot reach a volume of its: producers of its nodes wait. EC2's health dashboard tells more; a stop and start moves the instance."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed_AttachedEBS"
  dimensions          = { InstanceId = var.instance_ids[each.key] }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  period              = 60
  evaluation_periods  = 2
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = var.tags
}

# More writes than the volume is paid for wait in its queue.
resource "aws_cloudwatch_metric_alarm" "queue" {
  for_each            = length(var.volume_ids) > 0 ? var.slots : toset([])
  alarm_name          = "${local.unique}-${each.key}-wal-queue"
  alarm_description   = "Writes to the WAL volume of ${each.key} of ${var.name} queue: raise wal_volume.iops."
  namespace           = "AWS/EBS"
  metric_name         = "VolumeQueueLength"
  dimensions          = { VolumeId = var.volume_ids[each.key] }
  statistic           = "Average"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 16
  period              = 300
  evaluation_periods  = 3
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "group" {
  for_each            = local.group_alarms
  alarm_name          = "${local.unique}-${each.key}"
  alarm_description   = "The group of hosts of ${var.name}: ${each.value.why}."
  namespace           = "AWS/AutoScaling"
  metric_name         = each.value.metric
  dimensions          = { AutoScalingGroupName = var.group.name }
  statistic           = "Average"
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  period              = 60
  evaluation_periods  = each.value.minutes
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "cpu" {
  for_each            = var.slots
  alarm_name          = "${local.unique}-${each.key}-cpu"
  alarm_description   = "Host ${each.key} of ${var.name} is at the end of its CPU: add hosts, or choose a larger instance type."
  namespace           = "AWS/EC2"
  metric_name         = "CPUUtilization"
  dimensions          = { InstanceId = var.instance_ids[each.key] }
  statistic           = "Average"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 90
  period              = 300
  evaluation_periods  = 3
  treat_missing_data  = "ignore"
  alarm_actions       = var.alarm_topic_arns
  tags                = var.tags
}

resource "aws_cloudwatch_dashboard" "this" {
  dashboard_name = local.unique
  dashboard_body = jsonencode({ widgets = concat(local.host_widgets, local.volume_widgets, local.group_widgets) })
}
