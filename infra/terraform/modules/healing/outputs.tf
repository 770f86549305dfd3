output "alarms" {
  description = "Number of alarms."
  value       = length(local.watched)
}

output "remedies" {
  description = "Action and instance of each alarm."
  value = {
    for key, alarm in aws_cloudwatch_metric_alarm.remedy : key => {
      action   = one([for action in alarm.alarm_actions : action if strcontains(action, ":automate:")])
      metric   = alarm.metric_name
      minutes  = alarm.evaluation_periods
      instance = alarm.dimensions["InstanceId"]
    }
  }
}

output "started" {
  description = "Instances that are started when they were stopped."
  value       = flatten([for rule in aws_cloudwatch_event_rule.stopped : jsondecode(rule.event_pattern).detail.instance-id])
}

output "start_policy_json" {
  description = "IAM policy of the role that starts hosts."
  value       = aws_iam_role_policy.start.policy
}

output "rule_policy_json" {
  description = "IAM policy of the rule's role."
  value       = aws_iam_role_policy.rule.policy
}
