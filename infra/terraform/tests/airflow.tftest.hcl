# The instance that runs Airflow.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  interface_endpoints = ["secretsmanager"]
  airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", dags = jsonencode({ owner = "it's us" }), parallelism = 8 }
  client_cidrs        = { office = "10.8.0.0/16" }
}

run "an_instance_with_airflow" {
  assert {
    condition     = output.airflow == { url = "http://10.42.0.10:8080", instance = "i-0123456789abcdef0", password_secret = "lakehead/airflow" }
    error_message = jsonencode(output.airflow)
  }
  assert {
    condition     = module.airflow[0].ingress == tomap({ office = "10.8.0.0/16", vpc = "10.42.0.0/16" })
    error_message = "its page is for private ranges alone: ${jsonencode(module.airflow[0].ingress)}"
  }
  assert {
    condition     = module.airflow[0].metadata == { tokens = "required", encrypted = true }
    error_message = jsonencode(module.airflow[0].metadata)
  }
  assert {
    condition     = length(module.airflow[0].user_data) < 16384 && yamldecode(module.airflow[0].user_data).hostname == "lakehead-airflow"
    error_message = "user data is YAML and short"
  }
  assert {
    condition = alltrue([
      for line in ["AIRFLOW__CORE__PARALLELISM='8'", "AIRFLOW_VAR_LAKEHEAD_DAGS='{\"owner\":\"it\\u0027s us\"}'", "AIRFLOW_CONN_LAKEHEAD_DEFAULT='${output.airflow_connection_uri}'"] :
      strcontains(yamldecode(module.airflow[0].user_data).write_files[0].content, "${line}\n")
    ])
    error_message = yamldecode(module.airflow[0].user_data).write_files[0].content
  }
  assert {
    condition     = strcontains(module.airflow[0].user_data, "\"s3://packages/lakehead/airflow/\" /var/cache/airflow/") && strcontains(module.airflow[0].user_data, "\"./lakehead-1.0-py3-none-any.whl[airflow,lake]\"")
    error_message = "packages come from the folder airflow beside the brokers'"
  }
}

run "its_policy_has_its_packages_and_its_password_beside_the_jobs" {
  assert {
    condition = { for statement in jsondecode(output.airflow_policy_json).Statement : statement.Sid => statement.Resource if contains(["PackageObjects", "PackageListing", "TellPassword"], statement.Sid) } == {
      PackageObjects = "arn:aws:s3:::packages/lakehead/airflow/*"
      PackageListing = "arn:aws:s3:::packages"
      TellPassword   = "arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead/airflow-??????"
    }
    error_message = output.airflow_policy_json
  }
  assert {
    condition     = !strcontains(output.airflow_policy_json, "GetSecretValue") && !strcontains(output.airflow_policy_json, "\"Resource\":\"*\"")
    error_message = "it tells its password and reads none"
  }
}

run "a_type_of_another_architecture" {
  command = plan
  module {
    source = "./modules/airflow"
  }
  variables {
    name              = "lakehead"
    tags              = {}
    prefix            = "lakehead"
    store             = "s3://lake-bucket/lakehead"
    tables_prefix     = "tables"
    kms_key_arn       = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
    services          = []
    bootstrap_servers = "10.42.0.10:9092"
    host = {
      vpc_id             = "vpc-0123abcd", subnet_id = "subnet-0123abcd", ami_id = "ami-0123456789abcdef0", architecture = "arm64", instance_type = "m7i.large"
      root_gib           = 32, port = 8080, parallelism = 4, dags = "{}", lakehead_wheel = "s3://packages/lakehead-1.0-py3-none-any.whl", client_cidrs = {}
      https_egress_cidrs = {}, kafka_ports = { first = 9092, last = 9093 }, broker_security_group_id = "sg-0123abcd", session_manager = false
      package_sha256     = var.package_sha256, package_region = "us-east-1"
    }
  }
  expect_failures = [data.aws_ec2_instance_type.host["airflow"]]
}
