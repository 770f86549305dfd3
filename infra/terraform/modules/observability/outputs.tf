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
  description = "Number of alarms."
  value       = length(local.instances) + (length(var.volume_ids) > 0 ? 3 : 1) * length(var.slots) + length(local.group_alarms) + length(local.broker_alarms) + length(local.broker_shares)
}

output "alarm_names" {
  description = "Names of the alarms."
  value = sort([
    for alarm in concat(
      values(aws_cloudwatch_metric_alarm.host), values(aws_cloudwatch_metric_alarm.volume), values(aws_cloudwatch_metric_alarm.queue),
      values(aws_cloudwatch_metric_alarm.group), values(aws_cloudwatch_metric_alarm.cpu),
      values(aws_cloudwatch_metric_alarm.broker), values(aws_cloudwatch_metric_alarm.broker_share),
    ) : alarm.alarm_name
  ])
}

output "dashboard_json" {
  description = "Content of the dashboard."
  value       = aws_cloudwatch_dashboard.this.dashboard_body
}

output "broker_metrics" {
  description = "Metrics of brokers that alarms and dashboard look at."
  value = toset(concat(
    [for alarm in values(local.broker_alarms) : alarm.metric],
    flatten([for alarm in values(local.broker_shares) : [alarm.used, alarm.capacity]]),
    flatten([for widget in local.broker_widgets : [for metric in widget.properties.metrics : metric[1]]]),
  ))
}
