# Three zones, no disk to lose: acknowledged means in the bucket.
module "lakehead" {
  source = "../.."

  name            = "lakehead" # each cluster of an account has its own
  zones           = ["${var.region}a", "${var.region}b", "${var.region}c"]
  wal_mode        = "object"
  wal_puts_budget = 50
  bucket          = var.bucket
  lakehead_wheel  = var.lakehead_wheel
  package_sha256  = var.package_sha256
}
