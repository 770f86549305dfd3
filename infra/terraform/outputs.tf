output "bootstrap_servers" {
  description = "bootstrap.servers of Kafka clients: the first node of every host, or a name for them."
  value       = module.bootstrap.bootstrap_servers
}

output "kcat" {
  description = "A line that lists brokers and topics, from a machine inside the VPC; with SASL_SSL, where client.properties has librdkafka's settings of a user."
  value       = "kcat ${local.is_secured ? "-F client.properties " : ""}-L -b ${module.bootstrap.bootstrap_servers}"
}

output "store" {
  description = "The cluster's place: path of Spark, lakehead.scan and the command line, with settings of encryption at its end."
  value       = local.store_address
}

output "tables" {
  description = "Place of Delta tables."
  value       = "s3://${module.storage.bucket}/${var.tables_prefix}"
}

output "spark_options" {
  description = "Options of spark.read.format(\"lakehead\"), without the topic."
  value       = { path = local.store_address }
}

output "airflow_connection_uri" {
  description = "Value of AIRFLOW_CONN_LAKEHEAD_DEFAULT."
  value       = "lakehead://${split(",", module.bootstrap.bootstrap_servers)[0]}/?path=${urlencode(local.store_address)}"
}

output "broker_policy_json" {
  description = "IAM policy of the brokers."
  value       = module.brokers.broker_policy_json
}

output "spark_policy_json" {
  description = "IAM policy of Spark; null without spark."
  value       = one(module.lake[*].spark_policy_json)
}

output "spark_role_arn" {
  description = "Role of Spark; null without spark."
  value       = one(module.lake[*].spark_role_arn)
}

output "spark_instance_profile" {
  description = "Instance profile with Spark's role, for EMR on EC2; null unless spark.services has ec2.amazonaws.com."
  value       = one(module.lake[*].spark_instance_profile)
}

output "glue_database" {
  description = "Glue database of the tables; null without spark.glue_database."
  value       = one(module.lake[*].glue_database)
}

output "airflow_policy_json" {
  description = "IAM policy of Airflow's workers; null without Airflow."
  value       = one(module.airflow[*].airflow_policy_json)
}

output "airflow_role_arn" {
  description = "Role of Airflow's workers; null without Airflow."
  value       = one(module.airflow[*].airflow_role_arn)
}

output "airflow" {
  description = "Airflow's instance: its page inside the VPC, its id, and the secret that has its first password; null without airflow_host."
  value = var.airflow_host == null ? null : {
    url             = module.airflow[0].url
    instance        = module.airflow[0].instance_id
    password_secret = module.airflow[0].password_secret
  }
}

output "prometheus_targets" {
  description = "Metrics pages of all nodes, as targets of a Prometheus static_config; none without observability."
  value       = var.observability ? module.observability[0].prometheus_targets : []
}

output "prometheus_config" {
  description = "Configuration of a Prometheus that finds all nodes by itself; null without observability."
  value       = one(module.observability[*].prometheus_config)
}

output "prometheus_rules" {
  description = "Alerts for Prometheus, which prometheus_config loads as NAME.rules.yaml; null without observability."
  value       = one(module.observability[*].prometheus_rules)
}

output "prometheus_policy_json" {
  description = "IAM policy of such a Prometheus; null without observability."
  value       = one(module.observability[*].prometheus_policy_json)
}

output "log_groups" {
  description = "CloudWatch log groups of the hosts' journals (journal) and the brokers' metrics (metrics); none without cloudwatch."
  value       = length(module.cloudwatch) > 0 ? module.cloudwatch[0].log_groups : {}
}

output "hosts" {
  description = "Each host: zone, rack (the zone's id, for client.rack), host.id, first node id, how many nodes, address, instance, WAL, and the tag lakehead:revision that an instance made today would have. `lakehead rolling-update` goes by it."
  value = {
    for slot, host in local.slots : slot => {
      zone     = host.zone
      rack     = module.brokers.racks[slot]
      host_id  = "${var.name}-${slot}"
      node_id  = host.node_id
      nodes    = local.nodes_per_host
      address  = module.brokers.private_ips[slot]
      instance = module.brokers.instance_ids[slot]
      wal      = local.wal_uris[slot]
      revision = module.brokers.revisions[slot].next
    }
  }
}

output "hosts_to_replace" {
  description = "Hosts that were made of another image, instance type or release than the configuration has now. `lakehead rolling-update` replaces them."
  value       = local.hosts_to_replace
}

output "settings" {
  description = "Settings of all hosts: their address in the bucket, their version (the first digits of the SHA-256), and the version that each host has reported."
  value       = module.brokers.settings
}

output "hosts_with_other_settings" {
  description = "Hosts that reported another version of the settings than the configuration has. They take it by themselves, one after the other."
  value       = local.hosts_with_other_settings
}

output "kms_keys" {
  description = "Keys of the bucket: that of what is written now, and the cluster's own (null without one). Earlier keys of yours are needed as long as an object or a snapshot has them."
  value       = { current = module.storage.kms_key_arn, own = module.storage.own_kms_key_arn }
}

output "interface_endpoints" {
  description = "Services with an interface endpoint in the new VPC."
  value       = local.interface_endpoints
}

output "wal_volumes" {
  description = "WAL volume of each host; none with an object WAL."
  value       = local.block_wal ? module.wal[0].volumes : {}
}

output "wal_attachments" {
  description = "Attachments of WAL volumes by Terraform, for takeovers. A host attaches its own by itself, and one of gp3 that it takes over."
  value       = local.block_wal ? module.wal[0].attachments : {}
}
