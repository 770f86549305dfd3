# Three zones, and clients in VPCs of other accounts, by PrivateLink: a load balancer with a port for each
# of six nodes. What these accounts need, examples/private-link-client, is the output private_link.
module "lakehead" {
  source = "../.."

  name           = "lakehead" # each cluster of an account has its own
  zones          = ["${var.region}a", "${var.region}b", "${var.region}c"]
  wal_mode       = "object"
  nodes_per_host = 2
  bucket         = var.bucket
  lakehead_wheel = var.lakehead_wheel
  package_sha256 = var.package_sha256

  private_link = {
    domain             = var.domain
    allowed_principals = var.allowed_principals
  }
}
