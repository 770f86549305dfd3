variable "private_link" {
  description = "A way for clients that cannot reach the hosts' own addresses: a load balancer with a port for each node (first_port + node id) and one for the first request, and for allowed_principals (ARNs of accounts, roles, users) an endpoint service of PrivateLink; client_cidrs reach the load balancer without. Clients get names in domain: RACK.DOMAIN with several zones, or with cross_zone the domain alone. target_port is the hosts' further listener. certificate_arn has the load balancer speak TLS with clients, by a certificate of ACM in place of the hosts' own. Null: none."
  type = object({
    domain              = string
    allowed_principals  = optional(list(string), [])
    acceptance_required = optional(bool, true)
    client_cidrs        = optional(map(string), {})
    cross_zone          = optional(bool, false)
    certificate_arn     = optional(string)
    bootstrap_port      = optional(number, 9092)
    first_port          = optional(number, 20000)
    target_port         = optional(number, 9192)
  })
  default = null

  validation {
    condition     = var.private_link == null ? true : length(var.private_link.domain) <= 200 && can(regex("^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.)+[a-z]{2,63}$", var.private_link.domain))
    error_message = "private_link.domain is a domain's name in small letters, such as lake.example.com, that clients resolve by their own DNS (module client_endpoint makes it)."
  }
  validation {
    condition     = var.private_link == null ? true : alltrue([for arn in var.private_link.allowed_principals : can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:(root|(role|user)/.+)$", arn))])
    error_message = "private_link.allowed_principals are ARNs of accounts, roles or users, such as arn:aws:iam::123456789012:root. Not *: an endpoint is for accounts that are named."
  }
  validation {
    condition     = var.private_link == null ? true : length(var.private_link.allowed_principals) + length(var.private_link.client_cidrs) > 0
    error_message = "private_link needs allowed_principals, or client_cidrs for clients that reach the load balancer without PrivateLink: no client could come."
  }
  validation {
    condition     = var.private_link == null ? true : alltrue([for cidr in values(var.private_link.client_cidrs) : can(cidrhost(cidr, 0)) && can(regex("^(10\\.[0-9.]+/([89]|[12][0-9]|3[0-2])|172\\.(1[6-9]|2[0-9]|3[01])\\.[0-9.]+/(1[2-9]|2[0-9]|3[0-2])|192\\.168\\.[0-9.]+/(1[6-9]|2[0-9]|3[0-2])|100\\.(6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\\.[0-9.]+/(1[0-9]|2[0-9]|3[0-2])|198\\.19\\.[0-9.]+/(1[6-9]|2[0-9]|3[0-2]))$", cidr))])
    error_message = "private_link.client_cidrs are private IPv4 ranges (in 10/8, 172.16/12, 192.168/16, 100.64/10 or 198.19/16)."
  }
  validation {
    condition     = var.private_link == null ? true : alltrue([for port in [var.private_link.bootstrap_port, var.private_link.first_port, var.private_link.target_port] : port >= 1024 && port <= 65000 && floor(port) == port])
    error_message = "private_link's ports are whole numbers from 1024 to 65000."
  }
  validation {
    condition     = var.private_link == null ? true : abs(var.private_link.target_port - var.kafka_port) >= 100 && abs(var.private_link.target_port - var.metrics_port) >= 100
    error_message = "private_link.target_port, kafka_port and metrics_port lie 100 or more apart: all count up by node."
  }
  validation {
    condition     = var.private_link == null || length(setintersection(keys(var.settings), ["extra.listeners", "extra.advertised.listeners"])) == 0
    error_message = "With private_link, settings may not hold extra.listeners and extra.advertised.listeners: private_link makes them. For listeners of another kind leave private_link out, and make their load balancer yourself."
  }
  validation {
    condition     = try(var.private_link.certificate_arn, null) == null ? true : can(regex("^arn:aws[a-z-]*:acm:[a-z0-9-]+:[0-9]{12}:certificate/.+$", var.private_link.certificate_arn))
    error_message = "private_link.certificate_arn is the ARN of a certificate of ACM, for the domain and *.DOMAIN."
  }
}
