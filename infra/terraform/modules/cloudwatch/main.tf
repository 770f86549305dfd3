# Log groups, and what the CloudWatch agent of a host ships to them. Metrics go as log events, too (the
# embedded metric format), so that hosts need one service and one permission, and events keep what
# metrics leave out: host and node.

locals {
  # Metrics of two clusters of one name would be added up: what tells them apart is the bucket.
  unique    = "${var.name}-${var.bucket}"
  namespace = "Lakehead"
  groups    = toset(concat(var.logs ? ["journal"] : [], var.metrics ? ["metrics"] : []))

  # Each is a metric of its own on the bill, so here are those that say how a cluster does. Counters
  # arrive as how much was added since the last scrape.
  metrics = {
    lakehead_connections                        = "Count"
    lakehead_corrupt_blocks_total               = "Count"
    lakehead_data_keys_make_failures_total      = "Count"
    lakehead_data_keys_unwrap_failures_total    = "Count"
    lakehead_event_loop_lag_seconds             = "Seconds"
    lakehead_log_cache_capacity_bytes           = "Bytes"
    lakehead_log_cache_uncommitted_bytes        = "Bytes"
    lakehead_metadata_corrupt_checkpoints_total = "Count"
    lakehead_partitions_unled                   = "Count"
    lakehead_plain_data_refused_total           = "Count"
    lakehead_produced_batches_total             = "Count"
    lakehead_requests_failed_total              = "Count"
    lakehead_store_throttles_total              = "Count"
    lakehead_store_waiting                      = "Count"
    lakehead_upload_bytes_total                 = "Bytes"
    lakehead_wal_capacity_bytes                 = "Bytes"
    lakehead_wal_used_bytes                     = "Bytes"
    lakehead_writable                           = "Count"
  }

  # journalctl resolves patterns when it starts, and would never follow a unit that comes later: names.
  units = ["lakehead.service", "lakehead-settings.service", "lakehead-cloudwatch.service", "cloud-final.service"]

  agent = {
    agent = {
      region      = data.aws_region.current.name
      run_as_user = "cwagent"
    }
    logs = merge(
      { for section in var.logs ? ["logs_collected"] : [] : section => {
        journald = {
          collect_list = [{
            log_group_name  = aws_cloudwatch_log_group.this["journal"].name
            log_stream_name = "@HOST@/{instance_id}"
            units           = local.units
          }]
        }
      } },
      { for section in var.metrics ? ["metrics_collected"] : [] : section => {
        prometheus = {
          log_group_name         = aws_cloudwatch_log_group.this["metrics"].name
          prometheus_config_path = "/etc/lakehead/cloudwatch/prometheus.yaml"
          emf_processor = {
            metric_declaration_dedup = true
            metric_namespace         = local.namespace
            metric_unit              = local.metrics
            metric_declaration = [{
              source_labels    = ["cluster"]
              label_matcher    = "^${local.unique}$"
              dimensions       = [["cluster"]]
              metric_selectors = ["^(${join("|", keys(local.metrics))})$"]
            }]
          }
        }
      } },
    )
  }

  # A log stream of metrics has the name of the job that scraped them.
  scrape = { for section, body in {
    global = { scrape_interval = "1m", scrape_timeout = "10s" }
    scrape_configs = [{
      job_name = "@HOST@"
      static_configs = [{
        targets = [for node in range(var.nodes_per_host) : "127.0.0.1:${var.metrics_port + node}"]
        labels  = { cluster = local.unique }
      }]
      metric_relabel_configs = [{ source_labels = ["__name__"], regex = join("|", keys(local.metrics)), action = "keep" }]
    }]
  } : section => body if var.metrics }
}

data "aws_region" "current" {}

resource "aws_cloudwatch_log_group" "this" {
  #checkov:skip=CKV_AWS_158:by a key of yours where cloudwatch.kms_key_arn names one, else by CloudWatch's own
  #checkov:skip=CKV_AWS_338:as long as cloudwatch.retention_days says
  for_each          = local.groups
  name              = "${local.unique}/${each.key}"
  retention_in_days = var.retention_days
  kms_key_id        = var.kms_key_arn
  tags              = var.tags
}
