# One zone, two hosts, each with an io2 volume that the other one sees too.
module "lakehead" {
  source = "../.."

  name           = "lakehead" # each cluster of an account has its own
  zones          = ["${var.region}a"]
  hosts_per_zone = 2
  wal_mode       = "io2-multi-attach"
  wal_volume     = { gib = 10, iops = 500 }
  bucket         = var.bucket
  lakehead_wheel = var.lakehead_wheel
  package_sha256 = var.package_sha256
}
