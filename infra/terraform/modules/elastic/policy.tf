# What claiming a slot and telling the group need, beside what every broker may do.

locals {
  scaling_statements = [
    {
      # EC2 knows no finer permission of a Describe call.
      Sid      = "SlotsThereAre"
      Effect   = "Allow"
      Action   = ["ec2:DescribeNetworkInterfaces"]
      Resource = "*"
    },
    {
      # Both the interface and the instance have to be the cluster's. Nothing may be detached.
      Sid    = "SlotClaim"
      Effect = "Allow"
      Action = ["ec2:AttachNetworkInterface"]
      Resource = [
        for kind in ["instance", "network-interface"] :
        "arn:${data.aws_partition.current.partition}:ec2:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:${kind}/*"
      ]
      Condition = { StringEquals = { "aws:ResourceTag/lakehead:cluster" = var.name, "aws:ResourceTag/lakehead:bucket" = var.bucket } }
    },
    {
      Sid      = "GroupIsTold"
      Effect   = "Allow"
      Action   = ["autoscaling:CompleteLifecycleAction", "autoscaling:SetInstanceHealth"]
      Resource = "arn:${data.aws_partition.current.partition}:autoscaling:${data.aws_region.current.name}:${data.aws_caller_identity.current.account_id}:autoScalingGroup:*:autoScalingGroupName/${var.name}"
    },
  ]
  scaling_policy_json = jsonencode({ Version = "2012-10-17", Statement = local.scaling_statements })
}

data "aws_partition" "current" {}

data "aws_region" "current" {}

data "aws_caller_identity" "current" {}

resource "aws_iam_role_policy" "scaling" {
  name   = "lakehead-scaling"
  role   = var.role_name
  policy = local.scaling_policy_json
}
