# CloudWatch has what it knows by itself: hosts and volumes. The brokers' own metrics are Prometheus
# pages: what finds them and what to be alarmed by comes as files for a Prometheus of yours. Where hosts
# ship them to CloudWatch (module cloudwatch), there are alarms for what would page there, too.

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

  # What to do about an alert is in the rules of Prometheus, and the same here.
  rules = { for rule in yamldecode(file("${path.module}/rules.yaml")).groups[0].rules : rule.alert => rule }
  # Of all nodes: each has a sample in every minute. Minutes as Prometheus would wait, at least two.
  broker_alarms = { for name, alarm in {
    writable    = { rule = "LakeheadNotWritable", metric = "lakehead_writable", statistic = "Minimum", comparison = "LessThanThreshold", threshold = 1, minutes = 2, missing = "breaching", what = "Producers of a node wait, or metrics of no node arrive." }
    leaderless  = { rule = "LakeheadPartitionsWithoutLeader", metric = "lakehead_partitions_unled", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 0, minutes = 2, missing = "notBreaching", what = "Partitions have no leader." }
    store       = { rule = "LakeheadStoreFails", metric = "lakehead_store_waiting", statistic = "Maximum", comparison = "GreaterThanThreshold", threshold = 0, minutes = 5, missing = "notBreaching", what = "Calls of a node to the object store fail and wait." }
    blocks      = { rule = "LakeheadDamage", metric = "lakehead_corrupt_blocks_total", statistic = "Sum", comparison = "GreaterThanThreshold", threshold = 0, minutes = 1, missing = "notBreaching", what = "A node read other bytes than were written." }
    checkpoints = { rule = "LakeheadDamage", metric = "lakehead_metadata_corrupt_checkpoints_total", statistic = "Sum", comparison = "GreaterThanThreshold", threshold = 0, minutes = 1, missing = "notBreaching", what = "A node read another checkpoint than was written." }
    keys        = { rule = "LakeheadKeysFail", metric = "lakehead_data_keys_make_failures_total", statistic = "Sum", comparison = "GreaterThanThreshold", threshold = 0, minutes = 1, missing = "notBreaching", what = "A node gets no new data key from KMS or the key file." }
    unwraps     = { rule = "LakeheadKeysFail", metric = "lakehead_data_keys_unwrap_failures_total", statistic = "Sum", comparison = "GreaterThanThreshold", threshold = 0, minutes = 1, missing = "notBreaching", what = "A node cannot unwrap a data key." }
    plain       = { rule = "LakeheadPlainData", metric = "lakehead_plain_data_refused_total", statistic = "Sum", comparison = "GreaterThanThreshold", threshold = 0, minutes = 1, missing = "notBreaching", what = "A node refused data that are not encrypted." }
  } : name => alarm if var.broker_metrics != null }
  broker_shares = { for name, alarm in {
    wal = { rule = "LakeheadWalFills", used = "lakehead_wal_used_bytes", capacity = "lakehead_wal_capacity_bytes", percent = 80, minutes = 2, what = "The write-ahead log of a node fills." }
  } : name => alarm if var.broker_metrics != null }

  broker_widgets = [for title, metrics in {
    "Batches produced"                = { lakehead_produced_batches_total = "Sum" }
    "Producers are read from (1)"     = { lakehead_writable = "Minimum", lakehead_partitions_unled = "Maximum" }
    "Bytes in the WAL and the cache"  = { lakehead_wal_used_bytes = "Maximum", lakehead_wal_capacity_bytes = "Maximum", lakehead_log_cache_uncommitted_bytes = "Maximum", lakehead_log_cache_capacity_bytes = "Maximum" }
    "Bytes uploaded"                  = { lakehead_upload_bytes_total = "Sum" }
    "Calls of the store that wait"    = { lakehead_store_waiting = "Maximum", lakehead_store_throttles_total = "Sum" }
    "Connections and failed requests" = { lakehead_connections = "Sum", lakehead_requests_failed_total = "Sum" }
    "Event loop late by (s)"          = { lakehead_event_loop_lag_seconds = "Maximum" }
    } : {
    type = "metric", width = 8, height = 6
    properties = {
      title   = title, region = data.aws_region.current.name, period = 60, stat = "Maximum"
      metrics = [for metric, statistic in metrics : [var.broker_metrics.namespace, metric, "cluster", var.broker_metrics.cluster, { stat = statistic, label = trimprefix(metric, "lakehead_") }]]
    }
  } if var.broker_metrics != null]

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

resource "aws_cloudwatch_metric_alarm" "broker" {
  for_each            = local.broker_alarms
  alarm_name          = "${local.unique}-brokers-${each.key}"
  alarm_description   = "Brokers of ${var.name}: ${each.value.what} ${local.rules[each.value.rule].annotations.do}"
  namespace           = var.broker_metrics.namespace
  metric_name         = each.value.metric
  dimensions          = { cluster = var.broker_metrics.cluster }
  statistic           = each.value.statistic
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  period              = 60
  evaluation_periods  = each.value.minutes
  treat_missing_data  = each.value.missing
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "broker_share" {
  for_each            = local.broker_shares
  alarm_name          = "${local.unique}-brokers-${each.key}"
  alarm_description   = "Brokers of ${var.name}: ${each.value.what} ${local.rules[each.value.rule].annotations.do}"
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.percent
  evaluation_periods  = each.value.minutes
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = var.tags

  metric_query {
    id          = "share"
    label       = "Share in use (%)"
    expression  = "100 * used / capacity"
    return_data = true
  }

  dynamic "metric_query" {
    for_each = { used = each.value.used, capacity = each.value.capacity }

    content {
      id = metric_query.key

      metric {
        namespace   = var.broker_metrics.namespace
        metric_name = metric_query.value
        dimensions  = { cluster = var.broker_metrics.cluster }
        stat        = "Maximum"
        period      = 60
      }
    }
  }
}

resource "aws_cloudwatch_dashboard" "this" {
  dashboard_name = local.unique
  dashboard_body = jsonencode({ widgets = concat(local.host_widgets, local.volume_widgets, local.group_widgets, local.broker_widgets) })
}
