# Into a VPC that is there: one host with a gp3 volume, clients of an office network.
module "lakehead" {
  source = "../.."

  name           = "lakehead" # each cluster of an account has its own
  zones          = ["${var.region}a"]
  wal_mode       = "gp3"
  bucket         = var.bucket
  lakehead_wheel = var.lakehead_wheel
  package_sha256 = var.package_sha256
  client_cidrs   = { office = "10.8.0.0/16" }

  existing_vpc = {
    vpc_id          = var.vpc_id
    subnet_ids      = { "${var.region}a" = var.subnet_id }
    route_table_ids = var.route_table_ids
    services        = var.services
  }
}
