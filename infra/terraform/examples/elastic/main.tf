# Three to twelve hosts over three zones, as the traffic wants them. The first three are never spot
# instances, of the others three quarters are.
module "lakehead" {
  source = "../.."

  name           = "lakehead" # each cluster of an account has its own
  zones          = ["${var.region}a", "${var.region}b", "${var.region}c"]
  wal_mode       = "object"
  instance_type  = "m7i.large"
  bucket         = var.bucket
  lakehead_wheel = var.lakehead_wheel
  package_sha256 = var.package_sha256

  scaling = {
    min                 = 3
    max                 = 12
    mib_per_second      = 40
    on_demand_base      = 3
    spot_percent        = 75
    more_instance_types = ["m6i.large", "m7i-flex.large", "r7i.large", "r6i.large"]
  }
}
