output "volume_ids" {
  description = "WAL volume of each slot."
  value       = { for slot, volume in aws_ebs_volume.wal : slot => volume.id }
}

output "volumes" {
  description = "Description of each volume: zone, type, size in GiB, IOPS, multi-attach, key, tags, final snapshot."
  value = {
    for slot, volume in aws_ebs_volume.wal : slot => {
      zone         = volume.availability_zone
      type         = volume.type
      gib          = volume.size
      iops         = volume.iops
      multi_attach = volume.multi_attach_enabled
      encrypted    = volume.encrypted
      kms_key_arn  = volume.kms_key_id
      tags         = volume.tags

      final_snapshot = volume.final_snapshot
    }
  }
}

output "attachments" {
  description = "Attachments of volumes to other hosts: volume, host and device name."
  value = {
    for key, attachment in aws_volume_attachment.taker : key => {
      volume = local.attachments[key].volume
      host   = local.attachments[key].host
      device = attachment.device_name
    }
  }
}
