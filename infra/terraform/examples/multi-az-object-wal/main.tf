# Three zones, no disk to lose: acknowledged means in the bucket.
module "lakehead" {
  source = "../.."

  zones           = ["${var.region}a", "${var.region}b", "${var.region}c"]
  wal_mode        = "object"
  wal_puts_budget = 50
  bucket          = var.bucket
  lakehead_wheel  = var.lakehead_wheel
}
