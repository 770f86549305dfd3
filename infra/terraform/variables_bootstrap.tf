variable "bootstrap" {
  description = "Form of bootstrap_servers: addresses (of all hosts), dns (a name in a private hosted zone, $0.50 a month) or nlb (an internal network load balancer, some $16 a month). Clients then speak to the nodes' own addresses in any case."
  type        = string
  default     = "addresses"

  validation {
    condition     = contains(["addresses", "dns", "nlb"], var.bootstrap)
    error_message = "bootstrap is addresses, dns or nlb."
  }
  validation {
    condition     = var.bootstrap != "dns" || var.scaling == null
    error_message = "With scaling a name in DNS would stand for slots without a host too, which clients wait for: use bootstrap = \"nlb\" or \"addresses\"."
  }
}

variable "bootstrap_zone" {
  description = "With bootstrap dns: name of the private hosted zone that is made; the brokers are brokers.ZONE. Null: NAME.internal."
  type        = string
  default     = null

  validation {
    condition     = var.bootstrap_zone == null ? true : can(regex("^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.)+[a-z]{2,63}$", var.bootstrap_zone))
    error_message = "bootstrap_zone is a domain's name in small letters, such as lakehead.internal."
  }
  validation {
    condition     = var.bootstrap_zone == null || var.bootstrap == "dns"
    error_message = "bootstrap_zone is for bootstrap = \"dns\" only: set that, or leave the zone out."
  }
}
