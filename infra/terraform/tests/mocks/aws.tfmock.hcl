# What AWS would answer, where the provider's own checks or ours look at it.

mock_data "aws_region" {
  defaults = {
    name = "us-east-1"
  }
}

mock_data "aws_default_tags" {
  defaults = {
    tags = {}
  }
}

mock_data "aws_partition" {
  defaults = {
    partition  = "aws"
    dns_suffix = "amazonaws.com"
  }
}

mock_data "aws_caller_identity" {
  defaults = {
    account_id = "123456789012"
  }
}

mock_data "aws_availability_zone" {
  defaults = {
    zone_id = "use1-az4"
  }
}

mock_data "aws_ec2_instance_type" {
  defaults = {
    bare_metal              = false
    hypervisor              = "nitro"
    default_vcpus           = 2
    memory_size             = 8192
    supported_architectures = ["x86_64"]

    maximum_network_interfaces = 3
  }
}

mock_data "aws_ami" {
  defaults = {
    root_device_name = "/dev/xvda"
  }
}

mock_data "aws_ssm_parameter" {
  defaults = {
    insecure_value = "ami-0123456789abcdef0"
  }
}

# Provider 5 has a bucket's own Region as region, provider 6 as bucket_region.
mock_data "aws_s3_bucket" {
  defaults = {
    region        = "us-east-1"
    bucket_region = "us-east-1"
  }
}

mock_data "aws_vpc" {
  defaults = {
    cidr_block = "10.20.0.0/16"

    cidr_block_associations = [
      { association_id = "vpc-cidr-assoc-0", cidr_block = "10.20.0.0/16", state = "associated" },
      { association_id = "vpc-cidr-assoc-1", cidr_block = "100.64.0.0/16", state = "associated" },
      { association_id = "vpc-cidr-assoc-2", cidr_block = "10.21.0.0/16", state = "disassociated" },
    ]
  }
}

mock_data "aws_subnet" {
  defaults = {
    id                = "subnet-0123abcd"
    vpc_id            = "vpc-0123abcd"
    availability_zone = "us-east-1a"
  }
}

mock_data "aws_ec2_managed_prefix_list" {
  defaults = {
    id = "pl-63a5400a"
  }
}

mock_resource "aws_kms_key" {
  defaults = {
    arn = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
  }
}

mock_resource "aws_iam_role" {
  defaults = {
    arn = "arn:aws:iam::123456789012:role/lakehead"
  }
}

mock_resource "aws_sns_topic" {
  defaults = {
    arn = "arn:aws:sns:us-east-1:123456789012:lakehead"
  }
}

mock_resource "aws_lb" {
  defaults = {
    arn      = "arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/net/lakehead-kafka/0123456789abcdef"
    dns_name = "lakehead-kafka-0123456789abcdef.elb.us-east-1.amazonaws.com"
  }
}

mock_resource "aws_lb_target_group" {
  defaults = {
    arn = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/lakehead-kafka/0123456789abcdef"
  }
}

mock_resource "aws_ebs_volume" {
  defaults = {
    id = "vol-0123456789abcdef0"
  }
}

mock_resource "aws_instance" {
  defaults = {
    id         = "i-0123456789abcdef0"
    private_ip = "10.42.0.20"
  }
}

mock_resource "aws_network_interface" {
  defaults = {
    id         = "eni-0123456789abcdef0"
    private_ip = "10.42.0.10"
  }
}

mock_resource "aws_launch_template" {
  defaults = {
    id             = "lt-0123456789abcdef0"
    latest_version = 1
  }
}

mock_resource "aws_secretsmanager_secret" {
  defaults = {
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:lakehead"
  }
}

mock_resource "aws_vpc_endpoint_service" {
  defaults = {
    service_name = "com.amazonaws.vpce.us-east-1.vpce-svc-0123456789abcdef0"
  }
}
