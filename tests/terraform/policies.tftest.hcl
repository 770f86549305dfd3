# Applied with a mocked provider for what is rendered: policy_rendering.py reads the policies out of
# the state. The module's own tests are in infra/terraform/tests.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  observability = false
  self_healing  = false # services of AWS hold these roles: healing.tftest.hcl
}

override_resource {
  target = module.storage.aws_kms_key.nodes
  values = { arn = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000003" }
}

override_resource {
  target = module.security.aws_secretsmanager_secret.this["tls"]
  values = { arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead/tls-AbCdEf" }
}

override_resource {
  target = module.security.aws_secretsmanager_secret.this["first-admin"]
  values = { arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead/first-admin-AbCdEf" }
}

run "object" {
  variables {
    spark               = { services = ["emr-serverless.amazonaws.com"], glue_database = "lake" }
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
    interface_endpoints = ["secretsmanager"]
  }
}

run "io2" {
  variables {
    wal_mode       = "io2-multi-attach"
    hosts_per_zone = 2
  }
}

run "gp3" {
  variables {
    wal_mode = "gp3"
  }
}

run "scaling" {
  variables {
    zones   = ["us-east-1a", "us-east-1b", "us-east-1c"]
    scaling = { min = 1, max = 2 }
  }
}

run "express" {
  variables {
    wal_express   = true
    force_destroy = true
  }
}

run "entered" {
  variables {
    session_manager     = true
    package_kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000002"
    interface_endpoints = ["ssm", "ssmmessages", "secretsmanager"]
    airflow_host        = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
}

run "watched" {
  variables {
    cloudwatch = {}
  }
}

run "encrypted" {
  state_key = "encrypted" # a running cluster would get its keys first
  variables {
    encryption   = {}
    spark        = { services = ["emr-serverless.amazonaws.com"] }
    airflow_host = { package_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
  }
}

run "plaintext" {
  state_key = "plaintext" # running hosts keep their protocol
  variables {
    security = { protocol = "PLAINTEXT" }
  }
}
