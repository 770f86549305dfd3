data "aws_region" "current" {
  lifecycle {
    # Here, as conditions of variables may not refer to one another in a circle.
    precondition {
      condition     = var.existing_vpc == null || !local.needs_services ? true : var.existing_vpc.services != null || length(var.https_egress_cidrs) > 0
      error_message = "SASL_SSL and airflow_host need Secrets Manager, encryption KMS, a block WAL and scaling EC2, session_manager Systems Manager and cloudwatch CloudWatch Logs: say by existing_vpc.services how hosts reach them, \"endpoints\" (interface endpoints in the VPC) or \"nat\" (HTTPS to any address), or name the ranges in https_egress_cidrs."
    }
    postcondition {
      condition     = alltrue([for zone in var.zones : startswith(zone, self.name)])
      error_message = "The provider's region is ${self.name}, and zones lie elsewhere. Set the provider's region, or name zones of ${self.name}."
    }
  }
}

# The provider's own tags reach instances too, whose metadata show tags of simple names only.
data "aws_default_tags" "current" {
  lifecycle {
    postcondition {
      condition     = alltrue([for key in keys(self.tags) : can(regex("^[A-Za-z0-9+=.,_:@-]+$", key)) && !contains([".", "..", "_index"], key)])
      error_message = "default_tags of the provider have names that EC2 refuses for instances that show their tags in their metadata: ${join(", ", [for key in keys(self.tags) : key if !can(regex("^[A-Za-z0-9+=.,_:@-]+$", key)) || contains([".", "..", "_index"], key)])}. Only letters, digits and + - = . , _ : @ will do. Use a provider without them for this module: providers = { aws = aws.plain }."
    }
    postcondition {
      condition     = alltrue([for key in keys(self.tags) : !startswith(key, "lakehead:")])
      error_message = "default_tags of the provider begin with lakehead:, by which hosts find what is theirs. Choose other names."
    }
  }
}

module "network" {
  source = "./modules/network"

  name                = var.name
  tags                = local.tags
  zones               = var.zones
  cidr                = var.vpc_cidr
  existing            = var.existing_vpc
  interface_endpoints = local.interface_endpoints
  s3_services         = local.s3_services
}

module "storage" {
  source = "./modules/storage"

  name                 = var.name
  tags                 = local.own_tags
  bucket               = var.bucket
  kms_key_arn          = var.kms_key_arn
  own_kms_key          = local.own_kms_key
  node_key             = local.own_node_key
  force_destroy        = var.force_destroy
  abort_multipart_days = var.abort_multipart_days
  access_log_bucket    = var.access_log_bucket
  express_zone         = var.wal_express ? var.zones[0] : null
  express_zone_ids     = var.express_zone_ids
}

module "security" {
  source = "./modules/security"

  name         = var.name
  tags         = local.tags
  vpc_id       = module.network.vpc_id
  client_cidrs = local.client_cidrs
  dns_cidrs    = var.dns_cidrs

  client_security_group_ids = var.client_security_group_ids

  kafka_ports        = local.kafka_ports
  metrics_ports      = { first = var.metrics_port, last = var.metrics_port + local.ports_per_host - 1 }
  https_egress_cidrs = local.https_egress_cidrs
  s3_services        = local.s3_services
  kms_key_arn        = module.storage.kms_key_arn
  node_ports         = local.is_secured ? { first = var.security.node_port, last = var.security.node_port + local.ports_per_host - 1 } : null
  secrets            = local.is_secured
  force_destroy      = var.force_destroy
}

module "wal" {
  source = "./modules/wal"
  count  = local.block_wal ? 1 : 0

  name           = var.name
  tags           = local.tags
  mode           = var.wal_mode
  slots          = { for slot, host in local.slots : slot => { zone = host.zone, letter = host.letter, number = host.number } }
  hosts_per_zone = var.hosts_per_zone
  volume         = local.wal_volume
  takers         = var.wal_takers
  # The provider cannot change this alone on an io2 volume (it sends a ModifyVolume that modifies nothing).
  final_snapshot = var.wal_mode == "io2-multi-attach" || !var.force_destroy
  kms_key_arn    = var.kms_key_arn
  instance_ids   = module.brokers.instance_ids
}

module "brokers" {
  source = "./modules/brokers"

  name              = var.name
  tags              = local.tags
  slots             = { for slot, host in local.slots : slot => { zone = host.zone, subnet_id = module.network.subnet_ids[host.zone], node_id = host.node_id } }
  instance_type     = var.instance_type
  ami_id            = var.ami_id
  ami_release       = var.ami_release
  root_gib          = var.root_gib
  nodes_per_host    = var.nodes_per_host
  node_ids_per_host = local.node_ids_per_host
  security_group_id = module.security.security_group_id
  bucket            = module.storage.bucket
  prefix            = var.prefix
  kms_key_arn       = module.storage.kms_key_arn
  wal_uris          = local.wal_uris
  wal_mode          = var.wal_mode
  group_wal         = var.scaling == null ? null : local.object_wal
  wal_bucket        = module.storage.wal_bucket
  wal_volume_ids    = local.block_wal ? module.wal[0].volume_ids : {}
  kafka_port        = var.kafka_port
  metrics_port      = var.metrics_port
  settings          = merge({ "table.roots" = "s3://${module.storage.bucket}/${var.tables_prefix}" }, local.security_settings, local.encryption_settings, local.link_settings, var.settings)
  lakehead_wheel    = var.lakehead_wheel
  package_sha256    = var.package_sha256

  package_kms_key_arn   = var.package_kms_key_arn
  reaches_other_regions = local.reaches_other_regions

  node_keys       = local.node_keys
  secret_arns     = module.security.secret_arns
  first_admin     = var.security.admin
  session_manager = var.session_manager
  agent_config    = length(module.cloudwatch) > 0 ? module.cloudwatch[0].agent_config : "off\n"
  log_groups      = length(module.cloudwatch) > 0 ? values(module.cloudwatch[0].log_groups) : []

  volume_kms_key_arn = var.kms_key_arn
}

module "cloudwatch" {
  source = "./modules/cloudwatch"
  count  = var.cloudwatch == null ? 0 : 1

  name           = var.name
  tags           = local.tags
  bucket         = module.storage.bucket
  logs           = var.cloudwatch.logs
  metrics        = var.cloudwatch.metrics
  retention_days = var.cloudwatch.retention_days
  kms_key_arn    = var.cloudwatch.kms_key_arn
  metrics_port   = var.metrics_port
  nodes_per_host = var.nodes_per_host > 0 ? var.nodes_per_host : module.brokers.vcpus
}

module "bootstrap" {
  source = "./modules/bootstrap"

  name                      = var.name
  tags                      = local.tags
  kind                      = var.bootstrap
  zone_name                 = coalesce(var.bootstrap_zone, "${var.name}.internal")
  vpc_id                    = module.network.vpc_id
  subnet_ids                = values(module.network.subnet_ids)
  client_cidrs              = local.client_cidrs
  client_security_group_ids = var.client_security_group_ids
  broker_security_group_id  = module.security.security_group_id
  hosts                     = { for slot, host in merge(local.slots, local.group_slots) : slot => { address = local.addresses[slot], node_id = host.node_id } }
  port                      = var.kafka_port
}

module "lake" {
  source = "./modules/lake"
  count  = var.spark == null ? 0 : 1

  name          = var.name
  tags          = local.tags
  bucket        = module.storage.bucket
  prefix        = var.prefix
  tables_prefix = var.tables_prefix
  kms_key_arn   = module.storage.kms_key_arn
  node_keys     = local.node_keys
  services      = var.spark.services
  role_arns     = var.spark.role_arns
  databricks    = var.spark.databricks
  glue_database = var.spark.glue_database
}

module "airflow" {
  source = "./modules/airflow"
  count  = length(var.airflow_services) > 0 || var.airflow_host != null ? 1 : 0

  name              = var.name
  tags              = local.tags
  bucket            = module.storage.bucket
  prefix            = var.prefix
  store             = local.store_address
  tables_prefix     = var.tables_prefix
  kms_key_arn       = module.storage.kms_key_arn
  node_keys         = local.node_keys
  services          = var.airflow_services
  bootstrap_servers = module.bootstrap.bootstrap_servers
  host = var.airflow_host == null ? null : {
    vpc_id                    = module.network.vpc_id
    subnet_id                 = module.network.subnet_ids[var.zones[0]]
    ami_id                    = module.brokers.ami_id
    architecture              = module.brokers.architecture
    instance_type             = coalesce(var.airflow_host.instance_type, var.instance_type)
    root_gib                  = var.airflow_host.root_gib
    volume_kms_key_arn        = var.kms_key_arn
    port                      = var.airflow_host.port
    parallelism               = var.airflow_host.parallelism
    dags                      = var.airflow_host.dags
    lakehead_wheel            = var.lakehead_wheel
    package_sha256            = var.airflow_host.package_sha256
    package_kms_key_arn       = var.package_kms_key_arn
    package_region            = module.brokers.package_region
    client_cidrs              = local.client_cidrs
    client_security_group_ids = var.client_security_group_ids
    dns_cidrs                 = var.dns_cidrs
    https_egress_cidrs        = local.https_egress_cidrs
    kafka_ports               = local.kafka_ports
    broker_security_group_id  = module.security.security_group_id
    session_manager           = var.session_manager
  }
}

module "observability" {
  source = "./modules/observability"
  count  = var.observability ? 1 : 0

  name               = var.name
  tags               = local.tags
  bucket             = module.storage.bucket
  slots              = toset(keys(local.slots))
  instance_ids       = module.brokers.instance_ids
  group              = var.scaling == null ? null : { name = var.name, min = var.scaling.min, max = var.scaling.max }
  other_instance_ids = var.airflow_host == null ? {} : { airflow = module.airflow[0].instance_id }
  security_group_id  = module.security.security_group_id
  addresses          = module.brokers.private_ips
  volume_ids         = local.block_wal ? module.wal[0].volume_ids : {}
  metrics_port       = var.metrics_port
  nodes_per_host     = local.nodes_per_host
  alarm_topic_arns   = var.alarm_topic_arns
  broker_metrics     = try(var.cloudwatch.metrics, false) ? { namespace = module.cloudwatch[0].namespace, cluster = module.cloudwatch[0].cluster } : null
}

# Hosts of a group are replaced by the group.
module "healing" {
  source = "./modules/healing"
  count  = var.self_healing && var.scaling == null ? 1 : 0

  name             = var.name
  bucket           = module.storage.bucket
  tags             = local.tags
  slots            = toset(keys(local.slots))
  instance_ids     = module.brokers.instance_ids
  alarm_topic_arns = var.alarm_topic_arns
}
