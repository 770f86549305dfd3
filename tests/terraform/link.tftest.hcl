# Applied with a mocked provider for what is rendered: link_rendering.py reads the outputs out of the
# state. The module's own tests are in infra/terraform/tests.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name                     = "lakehead"
  tags                     = {}
  vpc_id                   = "vpc-0123abcd"
  subnet_ids               = { us-east-1a = "subnet-0123abcd", us-east-1b = "subnet-0123abce" }
  broker_security_group_id = "sg-0123abcd"
  hosts                    = { a-0 = { address = "10.42.0.10", node_id = 0 }, b-0 = { address = "10.42.16.10", node_id = 100 } }
  nodes_per_host           = 2
  domain                   = "lake.example.com"
  allowed_principals       = ["arn:aws:iam::210987654321:root"]
  bootstrap_port           = 9092
  first_port               = 20000
  target_port              = 9192
  metrics_port             = 9404
}

override_data {
  target = data.aws_availability_zone.each["us-east-1b"]
  values = { zone_id = "use1-az6" }
}

run "zonal" {
  module {
    source = "./modules/private_link"
  }
}

run "cross_zone" {
  module {
    source = "./modules/private_link"
  }
  variables {
    cross_zone = true
  }
}
