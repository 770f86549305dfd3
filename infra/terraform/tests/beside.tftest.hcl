# Roles for Spark and Airflow, alarms, and the cost estimate.

mock_provider "aws" {
  source = "./tests/mocks"
}

run "spark_and_airflow" {
  variables {
    spark            = { services = ["emr-serverless.amazonaws.com"], glue_database = "lake" }
    airflow_services = ["ec2.amazonaws.com"]
    nodes_per_host   = 2
  }
  assert {
    condition = alltrue([
      for statement in jsondecode(output.spark_policy_json).Statement : statement.Resource == "arn:aws:s3:::lake-bucket/tables/*"
      if length(setintersection(flatten([statement.Action]), ["s3:PutObject", "s3:DeleteObject"])) > 0
    ])
    error_message = "Spark writes tables and nothing else: ${output.spark_policy_json}"
  }
  assert {
    condition     = [for statement in jsondecode(output.spark_policy_json).Statement : statement.Action if statement.Resource == "arn:aws:s3:::lake-bucket/lakehead/*"] == [["s3:GetObject"]]
    error_message = "Spark reads topics"
  }
  assert {
    condition = { for statement in jsondecode(output.spark_policy_json).Statement : statement.Sid => statement.Resource if contains(["Tables", "DefaultDatabase"], statement.Sid) } == {
      Tables = [for what in ["catalog", "database/lake", "table/lake/*", "userDefinedFunction/lake/*"] : "arn:aws:glue:us-east-1:123456789012:${what}"], DefaultDatabase = [for what in ["catalog", "database/default", "userDefinedFunction/default/*"] : "arn:aws:glue:us-east-1:123456789012:${what}"]
    }
    error_message = "Spark has its Glue database and no other: ${output.spark_policy_json}"
  }
  assert {
    condition     = output.glue_database == "lake" && output.spark_instance_profile == null
    error_message = "EMR Serverless takes the role itself"
  }
  assert {
    condition     = alltrue([for policy in [output.spark_policy_json, output.airflow_policy_json] : !strcontains(policy, "\"Resource\":\"*\"") && !strcontains(policy, "s3:*")])
    error_message = "no statement is about everything"
  }
  assert {
    condition     = module.airflow[0].connection_uri == output.airflow_connection_uri && module.airflow[0].connection_parameter == "/airflow/connections/lakehead_default"
    error_message = "the connection that Airflow finds is the one that is shown"
  }
  assert {
    condition     = join(" ", output.prometheus_targets) == "10.42.0.10:9404 10.42.0.10:9405"
    error_message = "a target for each node"
  }
}

run "spark_on_emr_and_databricks" {
  variables {
    spark = { services = ["ec2.amazonaws.com"], databricks = { external_id = "0123-4567" } }
  }
  assert {
    condition     = output.spark_instance_profile != null && !strcontains(output.spark_policy_json, "glue:")
    error_message = "EMR on EC2 wants an instance profile"
  }
  assert {
    condition = [for statement in jsondecode(module.lake[0].spark_trust_json).Statement : [statement.Principal, try(statement.Condition.StringEquals["sts:ExternalId"], "")]] == [
      [{ Service = ["ec2.amazonaws.com"] }, ""],
      [{ AWS = "arn:aws:iam::414351767826:role/unity-catalog-prod-UCMasterRole-14S5ZJVKOTYTL" }, "0123-4567"],
      [{ AWS = "arn:aws:iam::123456789012:root" }, "0123-4567"],
    ]
    error_message = module.lake[0].spark_trust_json
  }
  assert {
    condition     = [for statement in jsondecode(module.lake[0].spark_trust_json).Statement : statement.Condition.ArnLike["aws:PrincipalArn"] if can(statement.Condition.ArnLike)] == ["arn:aws:iam::123456789012:role/lakehead-spark-*"]
    error_message = "of this account the role itself, and nobody else: ${module.lake[0].spark_trust_json}"
  }
}

run "a_service_comes_for_this_account_only" {
  variables {
    spark            = { services = ["emr-serverless.amazonaws.com"], role_arns = ["arn:aws:iam::123456789012:role/etl"] }
    airflow_services = ["airflow-env.amazonaws.com", "airflow.amazonaws.com"]
  }
  assert {
    condition = alltrue([
      for statement in concat(jsondecode(module.lake[0].spark_trust_json).Statement, jsondecode(module.airflow[0].trust_json).Statement) :
      try(statement.Condition.StringEqualsIfExists["aws:SourceAccount"], "") == "123456789012" if can(statement.Principal.Service)
    ])
    error_message = module.lake[0].spark_trust_json
  }
  assert {
    condition     = [for statement in jsondecode(module.lake[0].spark_trust_json).Statement : statement.Principal.AWS if can(statement.Principal.AWS)] == [["arn:aws:iam::123456789012:role/etl"]]
    error_message = module.lake[0].spark_trust_json
  }
}

run "in_china_services_have_names_of_their_own" {
  variables {
    spark    = { services = ["ec2.amazonaws.com.cn"] }
    wal_mode = "gp3"
  }
  override_data {
    target = module.brokers.data.aws_partition.current
    values = { partition = "aws-cn", dns_suffix = "amazonaws.com.cn" }
  }
  override_data {
    target = module.lake[0].data.aws_partition.current
    values = { partition = "aws-cn", dns_suffix = "amazonaws.com.cn" }
  }
  assert {
    condition     = !can(regex("amazonaws\\.com\"", output.broker_policy_json)) && !can(regex("amazonaws\\.com\"", output.spark_policy_json)) && output.spark_instance_profile != null
    error_message = output.broker_policy_json
  }
}

run "what_prometheus_needs" {
  state_key = "what_prometheus_needs"
  variables {
    nodes_per_host = 2
    name           = "lake-1"
  }
  assert {
    condition     = [for found in yamldecode(output.prometheus_config).scrape_configs[0].ec2_sd_configs : [found.port, found.region, found.filters[0].name]] == [[9404, "us-east-1", "instance.group-id"], [9405, "us-east-1", "instance.group-id"]]
    error_message = output.prometheus_config
  }
  assert {
    condition     = yamldecode(output.prometheus_config).rule_files == ["lake-1.rules.yaml"] && length(yamldecode(output.prometheus_rules).groups[0].rules) > 10
    error_message = "alerts are loaded"
  }
  assert {
    condition     = jsondecode(output.prometheus_policy_json).Statement[0].Action == ["ec2:DescribeInstances", "ec2:DescribeAvailabilityZones"]
    error_message = output.prometheus_policy_json
  }
}

run "alarms" {
  variables {
    wal_mode            = "gp3"
    interface_endpoints = ["secretsmanager"]
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  assert {
    condition     = module.observability[0].alarms == 5
    error_message = "status of host and Airflow, CPU, the volume and its queue: ${module.observability[0].alarms}"
  }
  assert {
    condition     = module.observability[0].alarms == length(module.observability[0].alarm_names)
    error_message = "as many are paid for as there are"
  }
}

# Of two clusters of one name in an account, none may overwrite what the other one has. Dashboards are
# the account's, whatever the region.
run "alarms_and_dashboard_of_two_clusters_of_one_name_differ" {
  variables {
    wal_mode = "gp3"
    bucket   = "another-bucket"
  }
  assert {
    condition     = length([for name in concat(module.observability[0].alarm_names, [module.observability[0].dashboard]) : name if !strcontains(name, "another-bucket")]) == 0
    error_message = join(" ", module.observability[0].alarm_names)
  }
}

run "a_group_of_hosts_is_watched_as_one" {
  module {
    source = "./modules/observability"
  }
  variables {
    name               = "lakehead"
    bucket             = "lake-bucket"
    tags               = {}
    slots              = []
    instance_ids       = {}
    other_instance_ids = {}
    security_group_id  = "sg-0123abcd"
    addresses          = {}
    volume_ids         = {}
    metrics_port       = 9404
    nodes_per_host     = 2
    alarm_topic_arns   = []
    group              = { name = "lakehead", min = 3, max = 9 }
  }
  assert {
    condition     = output.alarms == 2 && alltrue([for widget in jsondecode(output.dashboard_json).widgets : length(widget.properties.metrics) > 0])
    error_message = "two alarms, and no empty widget, which CloudWatch refuses: ${output.dashboard_json}"
  }
}

run "nothing_beside_unless_asked" {
  variables {
    observability = false
  }
  assert {
    condition     = output.spark_policy_json == null && output.airflow_policy_json == null && length(output.prometheus_targets) == 0
    error_message = "no roles, no alarms"
  }
  assert {
    condition     = output.monthly_cost_estimate.fixed == 9.3
    error_message = "only the key costs, two secrets with the way to them, and the two alarms by which the host comes back"
  }
}

# 2 x 730 h x $0.1008 = 147.17; 2 x 16 GiB x $0.08 = 2.56; 2 x (10 GiB x $0.125 + 500 IOPS x $0.065) = 67.50;
# 10 MiB/s: 2 x 3,285,000 puts + 4 x 2,628,000 gets = $37.05; 7 days = 5,906.25 GiB x $0.023 = 135.84;
# key, 2 secrets, 4 alarms and 4 of healing, dashboard, the endpoints of EC2 and of the secrets = 20.60.
run "cost_of_io2" {
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
  }
  assert {
    condition = output.monthly_cost_estimate == {
      instances = 147.17, root_volumes = 2.56, wal_volumes = 67.5, wal_puts = 0, requests = 37.05, storage = 135.84, airflow = 0, cross_zone = 0, fixed = 20.6, total = 410.72
    }
    error_message = jsonencode(output.monthly_cost_estimate)
  }
}

run "cost_of_many_iops" {
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
    wal_volume     = { gib = 100, iops = 70000 }
  }
  assert {
    condition     = output.monthly_cost_estimate.wal_volumes == 2 * (12.5 + 2080 + 1472 + 192)
    error_message = "IOPS cost less beyond 32,000 and 64,000: ${output.monthly_cost_estimate.wal_volumes}"
  }
}

# 20 GiB x $0.08 + 2,000 IOPS x $0.005 + 100 MiB/s x $0.04.
run "cost_of_gp3" {
  variables {
    wal_mode   = "gp3"
    wal_volume = { gib = 20, iops = 5000, mib_per_second = 225 }
  }
  assert {
    condition     = output.monthly_cost_estimate.wal_volumes == 15.6
    error_message = "gp3 costs what is above 3,000 IOPS and 125 MiB/s: ${output.monthly_cost_estimate.wal_volumes}"
  }
}

# 730 h x $0.1008 = 73.58, 32 GiB x $0.08 = 2.56, the secret 0.40; of another type, 730 h x $0.2016 = 147.17.
run "cost_of_airflow" {
  variables {
    interface_endpoints = ["secretsmanager"]
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
  assert {
    condition     = output.monthly_cost_estimate.airflow == 76.54
    error_message = "Airflow's instance, volume and secret: ${output.monthly_cost_estimate.airflow}"
  }
}

run "cost_of_a_larger_airflow" {
  variables {
    interface_endpoints = ["secretsmanager"]
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", instance_type = "m7i.xlarge" }
    prices              = { instance_hour = 1 }
  }
  assert {
    condition     = output.monthly_cost_estimate.airflow == 150.13 && output.monthly_cost_estimate.instances == 730
    error_message = "each type has its price: ${jsonencode(output.monthly_cost_estimate)}"
  }
}

run "cost_of_an_airflow_without_a_price" {
  variables {
    interface_endpoints = ["secretsmanager"]
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", instance_type = "x8g.large" }
  }
  assert {
    condition     = output.monthly_cost_estimate.total == null && output.monthly_cost_estimate.airflow == null
    error_message = "no total without Airflow's price"
  }
}

# Six nodes may put for $50 each; 10 MiB/s = 25,664.06 GiB a month, written once and read twice, two thirds of it across zones.
run "cost_of_three_zones" {
  state_key = "cost_of_three_zones"
  variables {
    zones = ["us-east-1a", "us-east-1b", "us-east-1c"]
  }
  assert {
    condition     = output.monthly_cost_estimate.wal_puts == 300 && output.monthly_cost_estimate.wal_volumes == 0
    error_message = "the budget bounds the puts"
  }
  assert {
    condition     = abs(output.monthly_cost_estimate.cross_zone - 25664.0625 * 3 * 2 / 3 * 0.02) < 0.01
    error_message = "traffic between zones: ${output.monthly_cost_estimate.cross_zone}"
  }
}

run "a_type_without_a_price_makes_no_estimate" {
  variables {
    instance_type = "x8g.large"
  }
  assert {
    condition     = output.monthly_cost_estimate.total == null && output.monthly_cost_estimate.storage > 0
    error_message = "no total without the instances' price"
  }
}

run "a_price_of_ones_own" {
  variables {
    instance_type = "x8g.large"
    prices        = { instance_hour = 0.2 }
  }
  assert {
    condition     = output.monthly_cost_estimate.instances == 146
    error_message = "730 hours at the given price"
  }
}
