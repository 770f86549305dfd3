variable "name" {
  description = "Name of the cluster: prefix of names, and the tag lakehead:cluster."
  type        = string
  default     = "lakehead"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,23}$", var.name))
    error_message = "name is 2 to 24 small letters, digits and hyphens, and begins with a letter: IAM and S3 allow no more."
  }
  validation {
    condition     = !startswith(var.name, "internal-")
    error_message = "name begins with internal-, which AWS keeps for load balancers of its own: choose another name."
  }
}

variable "tags" {
  description = "Further tags of every resource; names beginning with lakehead: are ours."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key in keys(var.tags) : !startswith(key, "lakehead:") && !startswith(key, "aws:")])
    error_message = "Tags beginning with lakehead: are set by the modules, those with aws: by AWS. Choose other names."
  }
  validation {
    condition     = alltrue([for key in keys(var.tags) : can(regex("^[A-Za-z0-9+=.,_:@-]+$", key)) && !contains([".", "..", "_index"], key)])
    error_message = "Names of tags hold letters, digits and + - = . , _ : @ only: instances show them in their metadata, which takes neither spaces nor slashes."
  }
}

variable "zones" {
  description = "Availability zones of the brokers: one for a block WAL; one, or three and more, for an object WAL."
  type        = list(string)

  validation {
    condition     = alltrue([for zone in var.zones : can(regex("^[a-z]{2}(-[a-z]+)+-[0-9][a-z]$", zone))])
    error_message = "zones are names of availability zones, such as us-east-1a. Local and Wavelength zones have neither io2 volumes nor a bucket near by."
  }
  validation {
    condition     = length(var.zones) == length(distinct(var.zones))
    error_message = "zones names a zone twice. Name each once; hosts_per_zone makes more hosts in it."
  }
  validation {
    condition     = length(var.zones) >= 1 && length(var.zones) <= 6 && length(var.zones) != 2
    error_message = "zones has one zone, or three to six: with two, one zone less leaves no majority of zones, and costs cross-zone traffic all the same."
  }
  validation {
    condition     = length(distinct([for zone in var.zones : substr(zone, 0, length(zone) - 1)])) == 1
    error_message = "All zones lie in one region, the provider's: a cluster has one bucket near by."
  }
}

variable "vpc_cidr" {
  description = "IPv4 range of the new VPC; each zone gets a sixteenth."
  type        = string
  default     = "10.42.0.0/16"

  validation {
    condition     = can(cidrsubnet(var.vpc_cidr, 4, 0)) && can(regex("/(1[6-9]|2[0-4])$", var.vpc_cidr)) && can(regex("^(10\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|192\\.168\\.)", var.vpc_cidr))
    error_message = "vpc_cidr is a private range (10/8, 172.16/12, 192.168/16) of /16 to /24, such as 10.42.0.0/16."
  }
}

variable "existing_vpc" {
  description = "Use this VPC instead of a new one: its id, a subnet id for each of `zones`, and the route tables that are to get an S3 gateway endpoint. services says how hosts reach other services of AWS there: endpoints (interface endpoints in the VPC) or nat (HTTPS to any address). cidrs are the VPC's IPv4 ranges; without it they are looked up, for which the VPC has to be there before the plan."
  type = object({
    vpc_id          = string
    subnet_ids      = map(string)
    route_table_ids = optional(list(string), [])
    services        = optional(string)
    cidrs           = optional(list(string))
  })
  default = null

  validation {
    condition     = var.existing_vpc == null ? true : can(regex("^vpc-[0-9a-z]+$", var.existing_vpc.vpc_id)) && alltrue([for id in values(var.existing_vpc.subnet_ids) : can(regex("^subnet-[0-9a-z]+$", id))])
    error_message = "existing_vpc.vpc_id looks like vpc-0123abcd, and subnet_ids' values like subnet-0123abcd."
  }
  validation {
    condition     = var.existing_vpc == null ? true : alltrue([for zone in var.zones : contains(keys(var.existing_vpc.subnet_ids), zone)])
    error_message = "existing_vpc.subnet_ids needs one subnet for each of zones, by the zone's name."
  }
  validation {
    condition     = try(var.existing_vpc.services, null) == null ? true : contains(["endpoints", "nat"], var.existing_vpc.services)
    error_message = "existing_vpc.services is endpoints or nat."
  }
  validation {
    condition     = try(var.existing_vpc.cidrs, null) == null ? true : length(var.existing_vpc.cidrs) > 0 && alltrue([for cidr in var.existing_vpc.cidrs : can(cidrhost(cidr, 0)) && can(regex("^(10\\.[0-9.]+/([89]|[12][0-9]|3[0-2])|172\\.(1[6-9]|2[0-9]|3[01])\\.[0-9.]+/(1[2-9]|2[0-9]|3[0-2])|192\\.168\\.[0-9.]+/(1[6-9]|2[0-9]|3[0-2])|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.[0-9.]+/(1[0-9]|2[0-9]|3[0-2])|198\\.19\\.[0-9.]+/(1[6-9]|2[0-9]|3[0-2]))$", cidr))])
    error_message = "existing_vpc.cidrs are the VPC's private IPv4 ranges, such as [\"10.20.0.0/16\", \"100.64.0.0/16\"], the primary one first."
  }
}

variable "interface_endpoints" {
  description = "Services that get an interface endpoint in the new VPC, such as ssm and ssmmessages for Session Manager (some $7 a month for each and zone)."
  type        = set(string)
  default     = []

  validation {
    condition     = length(var.interface_endpoints) == 0 || var.existing_vpc == null
    error_message = "interface_endpoints are made in a new VPC only: make those of an existing VPC where it is made."
  }
  validation {
    condition     = alltrue([for service in var.interface_endpoints : can(regex("^[a-z0-9.-]+$", service)) && !startswith(service, "com.amazonaws")])
    error_message = "interface_endpoints are short names of services, such as ssm, without com.amazonaws and region."
  }
}

variable "client_cidrs" {
  description = "Private ranges outside of the VPC whose clients may reach brokers and metrics, by a name: { office = \"10.8.0.0/16\" }. 100.64.0.0/10 and 198.19.0.0/16, of which pods of EKS have addresses, are private too."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for cidr in values(var.client_cidrs) : can(cidrhost(cidr, 0)) && can(regex("^(10\\.[0-9.]+/([89]|[12][0-9]|3[0-2])|172\\.(1[6-9]|2[0-9]|3[01])\\.[0-9.]+/(1[2-9]|2[0-9]|3[0-2])|192\\.168\\.[0-9.]+/(1[6-9]|2[0-9]|3[0-2])|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.[0-9.]+/(1[0-9]|2[0-9]|3[0-2])|198\\.19\\.[0-9.]+/(1[6-9]|2[0-9]|3[0-2]))$", cidr))])
    error_message = "client_cidrs are private IPv4 ranges (in 10/8, 172.16/12, 192.168/16, 100.64/10 or 198.19/16): brokers are not for the open internet, so nothing listens to other addresses."
  }
  validation {
    condition     = !contains(keys(var.client_cidrs), "vpc") && alltrue([for key in keys(var.client_cidrs) : !startswith(key, "vpc-")])
    error_message = "Names in client_cidrs are not vpc and do not begin with vpc-: those are the VPC's own ranges."
  }
}

variable "client_security_group_ids" {
  description = "Security groups whose members may reach brokers and metrics, by a name: { consumers = \"sg-0123abcd\" }; also of a peered VPC."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for id in values(var.client_security_group_ids) : can(regex("^sg-[0-9a-z]+$", id))])
    error_message = "client_security_group_ids are ids of security groups, such as sg-0123abcd."
  }
}

variable "https_egress_cidrs" {
  description = "Ranges that hosts may reach by HTTPS in addition to S3, by a name, such as a package mirror: { mirror = \"10.9.0.10/32\" }."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for cidr in values(var.https_egress_cidrs) : can(cidrhost(cidr, 0))])
    error_message = "https_egress_cidrs are IPv4 ranges, such as 10.9.0.10/32."
  }
}

variable "dns_cidrs" {
  description = "DNS servers of a VPC with DHCP options of its own, by a name: { corporate = \"10.1.0.53/32\" }. Amazon's own resolver needs none."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for cidr in values(var.dns_cidrs) : can(cidrhost(cidr, 0))])
    error_message = "dns_cidrs are IPv4 ranges, such as 10.1.0.53/32."
  }
}

variable "hosts_per_zone" {
  description = "Instances in each zone."
  type        = number
  default     = 1

  validation {
    condition     = var.hosts_per_zone >= 1 && var.hosts_per_zone <= 50 && floor(var.hosts_per_zone) == var.hosts_per_zone
    error_message = "hosts_per_zone is a whole number from 1 to 50."
  }
}

variable "first_host" {
  description = "Number of the first host in each zone, whose slot is a-N: hosts_per_zone hosts from it on. A set of hosts of another release, with addresses, volumes and node ids of its own, gets higher numbers than the one that it replaces."
  type        = number
  default     = 0

  validation {
    condition     = var.first_host >= 0 && floor(var.first_host) == var.first_host && var.first_host + var.hosts_per_zone <= 50
    error_message = "first_host is a whole number from 0, and first_host + hosts_per_zone is 50 at the most."
  }
  validation {
    condition     = var.first_host == 0 || var.scaling == null
    error_message = "With scaling, an instance refresh brings hosts of another release beside those that are there: remove first_host."
  }
}

variable "nodes_per_host" {
  description = "Nodes (processes) of each host; 0: one for each core."
  type        = number
  default     = 0

  validation {
    condition     = var.nodes_per_host >= 0 && var.nodes_per_host <= 100 && floor(var.nodes_per_host) == var.nodes_per_host
    error_message = "nodes_per_host is a whole number from 0 (one for each core) to 100: a host has 100 node ids to itself."
  }
}

variable "instance_type" {
  description = "EC2 instance type of the hosts, built on Nitro."
  type        = string
  default     = "m7i.large"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9-]+$", var.instance_type))
    error_message = "instance_type looks like m7i.large."
  }
  validation {
    condition     = !can(regex("^(t1|t2|m[1-4]|c[1-4]|cc[12]|cr1|r[34]|i2|d2|h1|hs1|x1|x1e|g2|g3|g3s|p2|f1)\\.", var.instance_type))
    error_message = "instance_type is of a family before Nitro, without NVMe volumes and reservations. Choose a newer one, such as m7i.large."
  }
}

variable "ami_id" {
  description = "Machine image with dnf, cloud-init and the AWS CLI; null: Amazon Linux 2023, the newest at the first apply."
  type        = string
  default     = null

  validation {
    condition     = var.ami_id == null ? true : can(regex("^ami-[0-9a-f]+$", var.ami_id))
    error_message = "ami_id looks like ami-0123456789abcdef0, or is null."
  }
}

variable "ami_release" {
  description = "Without ami_id: any text, such as 2026-11. A change of it takes the newest Amazon Linux 2023, which replaces hosts; null: that of the first apply stays."
  type        = string
  default     = null

  validation {
    condition     = var.ami_release == null || var.ami_id == null
    error_message = "ami_release is for Amazon's image: with ami_id, change that instead."
  }
}

variable "root_gib" {
  description = "Size of a host's root volume in GiB."
  type        = number
  default     = 16

  validation {
    condition     = var.root_gib >= 8 && var.root_gib <= 1024
    error_message = "root_gib is 8 (what Amazon Linux needs) to 1024."
  }
}

variable "lakehead_wheel" {
  description = "Lakehead's wheel: s3://bucket/folder/lakehead-VERSION-py3-none-any.whl with the wheels that it needs (and requirements.txt, if any) in the same folder, or an https address, for which hosts need a way to a package index."
  type        = string

  validation {
    condition     = can(regex("^(s3|https)://[A-Za-z0-9._-]+/[A-Za-z0-9._/+%-]*lakehead-[A-Za-z0-9._+%-]+\\.whl$", var.lakehead_wheel))
    error_message = "lakehead_wheel is an s3:// or https:// address that ends in lakehead-VERSION-py3-none-any.whl."
  }
}

variable "package_sha256" {
  description = "SHA-256 of the file SHA256SUMS in the folder of lakehead_wheel, made by `sha256sum *.whl >SHA256SUMS`: hosts install the files listed there, with these checksums, and nothing else. For a wheel by https, the wheel's own."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.package_sha256))
    error_message = "package_sha256 is 64 hexadecimal digits, as sha256sum prints them."
  }
}

variable "package_kms_key_arn" {
  description = "KMS key of the bucket with lakehead_wheel, if it has one of its own; hosts may decrypt by it."
  type        = string
  default     = null

  validation {
    condition     = var.package_kms_key_arn == null ? true : can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", var.package_kms_key_arn))
    error_message = "package_kms_key_arn is the ARN of a key (not of an alias), such as arn:aws:kms:us-east-1:123456789012:key/..., or null."
  }
}

variable "settings" {
  description = "Further settings of the brokers (docs/settings.md), such as { \"log.retention.ms\" = \"86400000\" }."
  type        = map(string)
  default     = {}

  validation {
    condition = length(setintersection(keys(var.settings), [
      "nodes", "node.id", "broker.rack", "host.id", "host", "advertised.host", "advertised.port", "port", "metrics.port", "data", "store", "wal",
    ])) == 0
    error_message = "settings may not hold nodes, node.id, broker.rack, host.id, host, advertised.*, port, metrics.port, data, store and wal: other variables make them."
  }
}

variable "kafka_port" {
  description = "Port of a host's first node; the others count up from it."
  type        = number
  default     = 9092

  validation {
    condition     = var.kafka_port >= 1024 && var.kafka_port <= 65000
    error_message = "kafka_port is 1024 to 65000: brokers are no root."
  }
}

variable "metrics_port" {
  description = "Port of the first node's metrics page; the others count up from it."
  type        = number
  default     = 9404

  validation {
    condition     = var.metrics_port >= 1024 && var.metrics_port <= 65000
    error_message = "metrics_port is 1024 to 65000: brokers are no root."
  }
  validation {
    condition     = abs(var.metrics_port - var.kafka_port) >= 100
    error_message = "metrics_port and kafka_port lie 100 or more apart: both count up by node."
  }
}

variable "bucket" {
  description = "Name of the bucket that is made for the cluster."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket)) && !startswith(var.bucket, "xn--") && !endswith(var.bucket, "-s3alias") && !endswith(var.bucket, "--x-s3")
    error_message = "bucket is 3 to 63 small letters, digits and hyphens, letters or digits at both ends, not xn--..., ...-s3alias or ...--x-s3 (dots are allowed by S3, but break TLS)."
  }
}

variable "prefix" {
  description = "Prefix of the cluster in the bucket, without slashes at its ends."
  type        = string
  default     = "lakehead"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.prefix)) && length(var.prefix) <= 200
    error_message = "prefix is names of letters, digits, _ and -, with single slashes between them, at most 200 characters."
  }
}

variable "tables_prefix" {
  description = "Prefix of the Delta tables in the bucket, outside the cluster's own."
  type        = string
  default     = "tables"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.tables_prefix))
    error_message = "tables_prefix is names of letters, digits, _ and -, with single slashes between them."
  }
  validation {
    condition     = !startswith("${var.tables_prefix}/", "${var.prefix}/") && !startswith("${var.prefix}/", "${var.tables_prefix}/") && !startswith("${var.tables_prefix}/", "${var.prefix}-settings/")
    error_message = "tables_prefix and prefix may not lie in one another, as what is under prefix, the brokers' sweep may delete; nor may tables lie in PREFIX-settings, which is Terraform's."
  }
}

variable "force_destroy" {
  description = "Allow destroy to delete the bucket with all data in it, and the cluster's own key. False: destroy is refused."
  type        = bool
  default     = false
}

variable "kms_key_arn" {
  description = "KMS key for what is written from now on: bucket, secrets, new volumes; null: a key of the cluster's own for bucket and secrets, and the account's key of EBS for volumes. own_kms_key belongs to it."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null ? true : can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", var.kms_key_arn))
    error_message = "kms_key_arn is the ARN of a key (not of an alias), such as arn:aws:kms:us-east-1:123456789012:key/..., or null."
  }
}

variable "own_kms_key" {
  description = "Keep a KMS key of the cluster's own in addition to kms_key_arn: true if it began without kms_key_arn, because data of that time can be read by that key alone. Null: it has one if there is no kms_key_arn."
  type        = bool
  default     = null

  validation {
    condition     = var.kms_key_arn == null || var.own_kms_key != null
    error_message = "kms_key_arn is given. If the cluster began without it, add own_kms_key = true: all that was written until now stays readable by the cluster's own key. If it begins with kms_key_arn, add own_kms_key = false."
  }
  validation {
    condition     = var.kms_key_arn != null || var.own_kms_key != false
    error_message = "own_kms_key = false needs kms_key_arn: without a key of its own the cluster needs one of yours."
  }
}

variable "abort_multipart_days" {
  description = "Days after which an upload in parts that never ended is removed."
  type        = number
  default     = 7

  validation {
    condition     = var.abort_multipart_days >= 1 && var.abort_multipart_days <= 365
    error_message = "abort_multipart_days is 1 to 365; a running upload lasts minutes."
  }
}

variable "access_log_bucket" {
  description = "Existing bucket for S3's access logs; null: none."
  type        = string
  default     = null

  validation {
    condition     = var.access_log_bucket == null ? true : var.access_log_bucket != var.bucket
    error_message = "access_log_bucket is another bucket than bucket: logs of logs never end, and Lakehead's sweep finds foreign objects."
  }
}

variable "session_manager" {
  description = "Allow sessions on hosts by AWS Systems Manager (in a new VPC: with interface_endpoints ssm, ssmmessages)."
  type        = bool
  default     = false

  validation {
    condition     = !var.session_manager || var.existing_vpc != null || length(setsubtract(["ssm", "ssmmessages"], var.interface_endpoints)) == 0
    error_message = "session_manager needs interface_endpoints = [\"ssm\", \"ssmmessages\"] in a new VPC, which has no other way to AWS' services."
  }
}
