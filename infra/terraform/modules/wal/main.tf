# One volume per host, which attaches it by itself, by the tag lakehead:wal. One of gp3 may later be
# with the host that took it over, so Terraform has no attachment of those. With multi-attach it
# attaches each volume to its takers besides: they need no answer of AWS to take it over.

locals {
  multi_attach = var.mode == "io2-multi-attach"
  takers       = local.multi_attach ? min(var.takers, var.hosts_per_zone - 1) : 0

  # The hosts before it, and for the first ones those after: more hosts change no attachment.
  first = min([for host in var.slots : host.number]...)
  attachments = merge([
    for slot, host in var.slots : {
      for number in range(local.first, max(host.number, local.first + local.takers + 1)) :
      "${slot}-on-${host.letter}-${number}" => { volume = slot, host = "${host.letter}-${number}" }
      if number != host.number && number >= host.number - local.takers
    }
  ]...)

  # A volume has one device name wherever it is: no two of a zone meet on a host, and who attaches
  # it first, Terraform or a host, has done what the other would do.
  device_names = concat(
    [for letter in split("", "fghijklmnop") : "/dev/sd${letter}"],
    [for pair in setproduct(["b", "c"], split("", "abcdefghijklmnopqrstuvwxyz")) : "/dev/xvd${join("", pair)}"],
  )
}

resource "aws_ebs_volume" "wal" {
  #checkov:skip=CKV_AWS_189:by a key of yours where there is one; else by AWS's own, since snapshots outlive the cluster and its key
  for_each             = var.slots
  availability_zone    = each.value.zone
  type                 = local.multi_attach ? "io2" : "gp3"
  size                 = var.volume.gib
  iops                 = var.volume.iops
  throughput           = local.multi_attach ? null : var.volume.mib_per_second
  multi_attach_enabled = local.multi_attach
  encrypted            = true
  kms_key_id           = var.kms_key_arn
  final_snapshot       = var.final_snapshot

  tags = merge(var.tags, {
    Name              = "${var.name}-wal-${each.key}"
    "lakehead:wal"    = each.key
    "lakehead:device" = local.device_names[each.value.number]
  })

  # A volume has one key for its life: another one would put an empty volume in its place.
  lifecycle {
    ignore_changes = [kms_key_id]
  }
}

resource "aws_volume_attachment" "taker" {
  for_each    = local.attachments
  volume_id   = aws_ebs_volume.wal[each.value.volume].id
  instance_id = var.instance_ids[each.value.host]
  device_name = local.device_names[var.slots[each.value.volume].number]
}
