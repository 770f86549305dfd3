# A fixed host that is lost comes back by itself, as the same host: with its id, its address and its
# volumes. EC2 does that, asked by alarms and by a rule; nothing of it needs a machine that is well.

locals {
  # Alarms of one name are one alarm.
  unique = "${var.name}-${var.bucket}"

  automate = "arn:${data.aws_partition.current.partition}:automate:${data.aws_region.current.name}:ec2"
  document = "arn:${data.aws_partition.current.partition}:ssm:${data.aws_region.current.name}::automation-definition/AWS-StartEC2Instance"
  account  = data.aws_caller_identity.current.account_id
  machines = "arn:${data.aws_partition.current.partition}:ec2:${data.aws_region.current.name}:${local.account}:instance/*"

  # A failed system is moved to other hardware, one that is hung is started again. Times are such that
  # the two never meet, and a start (some minutes without a network) is no reason for the next.
  remedies = {
    recover = { metric = "StatusCheckFailed_System", minutes = 2, why = "its hardware or network at AWS failed: it is moved" }
    reboot  = { metric = "StatusCheckFailed_Instance", minutes = 6, why = "its system does not answer: it is rebooted" }
  }
  watched = merge([
    for slot in var.slots : { for remedy, how in local.remedies : "${slot}-${remedy}" => merge(how, { slot = slot, remedy = remedy }) }
  ]...)

  # A pattern holds 2,048 characters, an id takes 22.
  chunks = { for index, slots in chunklist(sort(tolist(var.slots)), 50) : tostring(index) => slots }

  start_statements = [
    {
      Sid       = "StartHosts"
      Effect    = "Allow"
      Action    = ["ec2:StartInstances"]
      Resource  = local.machines
      Condition = { StringEquals = { "aws:ResourceTag/lakehead:cluster" = var.name, "aws:ResourceTag/lakehead:bucket" = var.bucket } }
    },
    # EC2 knows no narrower permission for these two.
    {
      Sid      = "LookAtHosts"
      Effect   = "Allow"
      Action   = ["ec2:DescribeInstances", "ec2:DescribeInstanceStatus"]
      Resource = "*"
    },
    # To start an instance with encrypted volumes, EC2 takes grants of their keys in the name of who starts.
    {
      Sid      = "GrantForVolumes"
      Effect   = "Allow"
      Action   = ["kms:CreateGrant"]
      Resource = "arn:${data.aws_partition.current.partition}:kms:${data.aws_region.current.name}:*:key/*"
      Condition = {
        Bool         = { "kms:GrantIsForAWSResource" = "true" }
        StringEquals = { "kms:ViaService" = "ec2.${data.aws_region.current.name}.${data.aws_partition.current.dns_suffix}" }
      }
    },
  ]
  rule_statements = [
    {
      Sid      = "Automation"
      Effect   = "Allow"
      Action   = ["ssm:StartAutomationExecution"]
      Resource = "${local.document}:*"
    },
    {
      Sid       = "ByTheRoleThatStarts"
      Effect    = "Allow"
      Action    = ["iam:PassRole"]
      Resource  = aws_iam_role.start.arn
      Condition = { StringEquals = { "iam:PassedToService" = "ssm.amazonaws.com" } }
    },
  ]
}

data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_caller_identity" "current" {}

resource "aws_cloudwatch_metric_alarm" "remedy" {
  for_each            = local.watched
  alarm_name          = "${local.unique}-${each.key}"
  alarm_description   = "Host ${each.value.slot} of ${var.name}: ${each.value.why}."
  namespace           = "AWS/EC2"
  metric_name         = each.value.metric
  dimensions          = { InstanceId = var.instance_ids[each.value.slot] }
  statistic           = "Minimum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  period              = 60
  evaluation_periods  = each.value.minutes
  treat_missing_data  = "missing"
  alarm_actions       = concat(["${local.automate}:${each.value.remedy}"], var.alarm_topic_arns)
  tags                = var.tags
}

# EC2 stops instances too: retired hardware, a recovery that failed. Nobody else would start them.
resource "aws_cloudwatch_event_rule" "stopped" {
  for_each    = local.chunks
  name_prefix = "${var.name}-stopped-"
  description = "Hosts of Lakehead ${var.name} that were stopped"
  tags        = var.tags

  event_pattern = jsonencode({
    source      = ["aws.ec2"]
    detail-type = ["EC2 Instance State-change Notification"]
    detail      = { state = ["stopped"], instance-id = [for slot in each.value : var.instance_ids[slot]] }
  })
}

resource "aws_cloudwatch_event_target" "start" {
  for_each = local.chunks
  rule     = aws_cloudwatch_event_rule.stopped[each.key].name
  arn      = "${local.document}:$DEFAULT"
  role_arn = aws_iam_role.rule.arn

  input_transformer {
    input_paths    = { instance = "$.detail.instance-id" }
    input_template = "{\"InstanceId\":[<instance>],\"AutomationAssumeRole\":[\"${aws_iam_role.start.arn}\"]}"
  }

  # While there is no capacity, again and again for a day.
  retry_policy {
    maximum_event_age_in_seconds = 86400
    maximum_retry_attempts       = 185
  }
}

resource "aws_iam_role" "start" {
  name_prefix = "${var.name}-start-"
  description = "Starts hosts of Lakehead ${var.name} that were stopped"
  tags        = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ssm.amazonaws.com" }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
    }]
  })
}

resource "aws_iam_role_policy" "start" {
  name   = "lakehead"
  role   = aws_iam_role.start.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.start_statements })
}

resource "aws_iam_role" "rule" {
  name_prefix = "${var.name}-stopped-"
  description = "Asks for hosts of Lakehead ${var.name} to be started"
  tags        = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "events.amazonaws.com" }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
    }]
  })
}

resource "aws_iam_role_policy" "rule" {
  name   = "lakehead"
  role   = aws_iam_role.rule.id
  policy = jsonencode({ Version = "2012-10-17", Statement = local.rule_statements })
}
