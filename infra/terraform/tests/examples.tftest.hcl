# Every example, as a user would apply it.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  region = "us-east-1"
}

run "minimal" {
  module {
    source = "./examples/minimal"
  }
  assert {
    condition     = length(output.cluster.hosts) == 2 && length(output.cluster.wal_attachments) == 2
    error_message = "two hosts, each the taker of the other's volume"
  }
}

run "multi_az_object_wal" {
  module {
    source = "./examples/multi-az-object-wal"
  }
  assert {
    condition     = toset([for host in output.cluster.hosts : host.zone]) == toset(["us-east-1a", "us-east-1b", "us-east-1c"]) && length(output.cluster.wal_volumes) == 0
    error_message = "a host in each of three zones, no volume"
  }
}

run "existing_vpc" {
  module {
    source = "./examples/existing-vpc"
  }
  variables {
    vpc_id    = "vpc-0123abcd"
    subnet_id = "subnet-0123abcd"
  }
  assert {
    condition     = length(output.cluster.wal_volumes) == 1
    error_message = "one gp3 volume"
  }
}

# 730 h x $0.1008 = 73.58; 16 GiB x $0.08 = 1.28; two nodes that may put for $20 each; 2 x 525,600 puts + 2 x 2,628,000 gets = $7.36;
# 1 MiB/s for 7 days = 590.625 GiB x $0.023 = 13.58; Airflow as in beside.tftest.hcl = 76.54; key, 2 secrets, 3 alarms and 2 of healing, dashboard, 3 endpoints = 27.20.
run "first_table" {
  module {
    source = "./examples/first-table"
  }
  variables {
    airflow_sha256 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
  }
  assert {
    condition = output.monthly_cost_estimate == {
      instances = 73.58, root_volumes = 1.28, wal_volumes = 0, wal_puts = 40, requests = 7.36, storage = 13.58, airflow = 76.54, cross_zone = 0, fixed = 27.2, total = 239.54
    }
    error_message = jsonencode(output.monthly_cost_estimate)
  }
  assert {
    condition     = output.cluster.airflow.password_secret == "lakehead/airflow" && length(output.cluster.interface_endpoints) == 3
    error_message = "Airflow, and the ways to it"
  }
}

run "elastic" {
  module {
    source = "./examples/elastic"
  }
  assert {
    condition     = length(output.cluster.slots) == 24 && length(output.cluster.hosts) == 0
    error_message = "room for twelve hosts when a zone is lost, and for those that replace others"
  }
}

run "private_link" {
  module {
    source = "./examples/private-link"
  }
  variables {
    allowed_principals = ["arn:aws:iam::210987654321:root"]
  }
  override_data {
    target = module.lakehead.module.private_link[0].data.aws_availability_zone.each["us-east-1b"]
    values = { zone_id = "use1-az6" }
  }
  override_data {
    target = module.lakehead.module.private_link[0].data.aws_availability_zone.each["us-east-1c"]
    values = { zone_id = "use1-az1" }
  }
  assert {
    condition     = length(output.private_link.listeners) == 7 && output.private_link.client.service_name == "com.amazonaws.vpce.us-east-1.vpce-svc-0123456789abcdef0"
    error_message = "a port for each of six nodes and one to begin at, behind a service"
  }
}

run "private_link_client" {
  module {
    source = "./examples/private-link-client"
  }
  variables {
    cluster      = run.private_link.private_link.client
    vpc_id       = "vpc-0123abcd"
    subnet_ids   = { us-east-1a = "subnet-0123abcd", us-east-1b = "subnet-0123abce", us-east-1d = "subnet-0123abcf" }
    client_cidrs = { vpc = "10.60.0.0/16" }
  }
  override_data {
    target = module.client_endpoint.data.aws_availability_zone.each["us-east-1b"]
    values = { zone_id = "use1-az1" }
  }
  override_data {
    target = module.client_endpoint.data.aws_availability_zone.each["us-east-1d"]
    values = { zone_id = "use1-az6" }
  }
  override_resource {
    target = module.client_endpoint.aws_vpc_endpoint.this
    values = {
      id = "vpce-0123456789abcdef0"
      dns_entry = [
        { dns_name = "vpce-0123456789abcdef0-abcdefgh.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com", hosted_zone_id = "Z7HUB22UULQXV" },
        { dns_name = "vpce-0123456789abcdef0-abcdefgh-us-east-1a.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com", hosted_zone_id = "Z7HUB22UULQXV" },
        { dns_name = "vpce-0123456789abcdef0-abcdefgh-us-east-1b.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com", hosted_zone_id = "Z7HUB22UULQXV" },
        { dns_name = "vpce-0123456789abcdef0-abcdefgh-us-east-1d.vpce-svc-0123456789abcdef0.us-east-1.vpce.amazonaws.com", hosted_zone_id = "Z7HUB22UULQXV" },
      ]
    }
  }
  assert {
    condition     = output.bootstrap_servers == run.private_link.private_link.bootstrap_servers
    error_message = "what one side gives out, the other one takes: ${output.bootstrap_servers}"
  }
}
