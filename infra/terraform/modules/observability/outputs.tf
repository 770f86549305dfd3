output "prometheus_targets" {
  description = "Metrics pages of all nodes, as targets of a Prometheus static_config."
  value       = local.targets
}

output "dashboard" {
  description = "Name of the CloudWatch dashboard."
  value       = aws_cloudwatch_dashboard.this.dashboard_name
}

output "prometheus_config" {
  description = "Configuration of a Prometheus that finds all nodes, and loads prometheus_rules."
  value       = local.prometheus_config
}

output "prometheus_rules" {
  description = "Alerts for Prometheus."
  value       = file("${path.module}/rules.yaml")
}

output "prometheus_policy_json" {
  description = "IAM policy that such a Prometheus needs to find the hosts."
  value       = local.prometheus_policy_json
}

output "alarms" {
  description = "How many alarms there are."
  value       = length(local.instances) + (length(var.volume_ids) > 0 ? 3 : 1) * length(var.slots) + length(local.group_alarms)
}

output "alarm_names" {
  description = "Names of the alarms."
  value = sort([
    for alarm in concat(
      values(aws_cloudwatch_metric_alarm.host), values(aws_cloudwatch_metric_alarm.volume), values(aws_cloudwatch_metric_alarm.queue),
      values(aws_cloudwatch_metric_alarm.group), values(aws_cloudwatch_metric_alarm.cpu),
    ) : alarm.alarm_name
  ])
}

output "dashboard_json" {
  description = "What the dashboard shows."
  value       = aws_cloudwatch_dashboard.this.dashboard_body
}
