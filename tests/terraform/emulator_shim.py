"""What moto 5.2.5 does otherwise than AWS and Terraform's provider notices, put right in process.

Each change takes hold of one inner part of moto, by name and by its parameters: where that part has
moved, ShimMisfit says which, before anything is served.
"""

import inspect
import threading
from collections.abc import Callable
from typing import Any

import moto
from moto.core.responses import ActionResult
from moto.ec2 import exceptions
from moto.ec2.models.elastic_block_store import EBSBackend, Volume
from moto.ec2.models.elastic_network_interfaces import NetworkInterfaceBackend
from moto.ec2.models.instances import Instance
from moto.ec2.models.launch_templates import LaunchTemplate
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.responses.monitoring import Monitoring
from moto.elbv2 import models as balancing
from moto.elbv2.responses import ELBV2Response
from moto.iam.access_control import PermissionResult
from moto.route53.models import Route53Backend
from moto.s3.models import FakeBucket

from tests.terraform import emulator_groups as groups
from tests.terraform import emulator_hosts as hosts
from tests.terraform.emulator_parts import ShimMisfit, taken

VERSION = "5.2.5"
SHARED_MAX = 16
"""Instances that may have an io2 volume with multi-attach at once."""

_OF_ATTACHMENTS: dict[str, Callable[[Any], str]] = {
    "attachment.device": lambda attachment: attachment.device,
    "attachment.instance-id": lambda attachment: attachment.instance.id,
    "attachment.status": lambda attachment: attachment.status,
}
"""Filters of DescribeVolumes that hold for any of the attachments."""


def install() -> None:
    """Change moto. Raises ShimMisfit."""
    if moto.__version__ != VERSION:
        raise ShimMisfit(f"moto is {moto.__version__}, and the changes are for {VERSION}")
    share_volumes()
    monitor_instances()
    keep_zones_private()
    name_network_load_balancers()
    tell_whether_rules_hold_for_private_link()
    part_tags_of_launch_templates()
    describe_rules()
    free_interfaces()
    let_settings_through_without_tls()
    groups.install()
    hosts.install()


def refused(code: str, message: str) -> Exception:
    """Return EC2's error of a code."""
    error: Exception = exceptions.EC2ClientError(code, message)
    return error


def share_volumes() -> None:
    """A volume has a list of attachments; several only with multi-attach, all in its zone."""
    attach = taken(
        EBSBackend, "attach_volume", "self volume_id instance_id device_path delete_on_termination"
    )
    taken(EBSBackend, "detach_volume", "self volume_id instance_id device_path")
    filtered = taken(Volume, "get_filter_value", "self filter_name method_name")
    if "attachment" not in Volume.__init__.__code__.co_names:
        raise ShimMisfit("Volume.__init__ does not set attachment, which the change takes hold of")
    if not isinstance(inspect.getattr_static(Volume, "attachments", None), property):
        raise ShimMisfit("Volume.attachments is no property")

    def attach_checked(
        self: Any,
        volume_id: str,
        instance_id: str,
        device_path: str,
        delete_on_termination: bool = False,
    ) -> Any:
        volume, instance = self.get_volume(volume_id), self.get_instance(instance_id)
        check_attach(volume, instance, device_path, [one.instance.id for one in held(volume)])
        return attach(self, volume_id, instance_id, device_path, delete_on_termination)

    def filter_value(self: Any, filter_name: str, method_name: str | None = None) -> Any:
        one = _OF_ATTACHMENTS.get(filter_name)
        return [one(a) for a in held(self)] if one else filtered(self, filter_name, method_name)

    # moto looks at `attachment` to know whether there is any.
    Volume.attachment = property(lambda volume: next(iter(held(volume)), None), hold)
    Volume.attachments = property(lambda volume: list(held(volume)))
    Volume.get_filter_value = filter_value
    EBSBackend.attach_volume = attach_checked
    EBSBackend.detach_volume = detach


def held(volume: Any) -> list[Any]:
    """Return the attachments of a volume."""
    found: list[Any] = volume.__dict__.setdefault("_held", [])
    return found


def hold(volume: Any, attachment: Any) -> None:
    """Add an attachment; moto sets None where it has none yet."""
    if attachment is not None:
        held(volume).append(attachment)


def detach(self: Any, volume_id: str, instance_id: str, device_path: str) -> Any:
    """End one of the attachments; without an instance, the only one."""
    volume = self.get_volume(volume_id)
    found = [one for one in held(volume) if instance_id in {None, "", one.instance.id}]
    if len(found) != 1 or device_path not in {None, "", found[0].device}:
        raise refused("IncorrectState", f"Volume '{volume_id}' is not so attached.")
    held(volume).remove(found[0])
    del found[0].instance.block_device_mapping[found[0].device]
    found[0].status = "detached"
    return found[0]


def check_attach(volume: Any, instance: Any, device: str, holders: list[str]) -> None:
    """Refuse what EC2 refuses (AttachVolume, EBS Multi-Attach in its user guide)."""
    if volume.availability_zone != instance.availability_zone:
        raise refused(
            "InvalidVolume.ZoneMismatch",
            f"The volume '{volume.id}' is not in the same availability zone as instance "
            f"'{instance.id}'",
        )
    if instance.state not in {"running", "stopped"}:
        raise refused("IncorrectState", f"Instance '{instance.id}' is {instance.state}.")
    shared = str(volume.multi_attach_enabled).lower() == "true"
    if instance.id in holders or (holders and not shared):
        raise refused("VolumeInUse", f"{volume.id} is already attached to {', '.join(holders)}")
    if len(holders) >= SHARED_MAX:
        raise refused("AttachmentLimitExceeded", f"{volume.id} has {SHARED_MAX} attachments")
    if device in instance.block_device_mapping:
        raise refused("InvalidParameterValue", f"Attachment point {device} is already in use")


def monitor_instances() -> None:
    """Detailed monitoring is turned on and off; moto has no such call."""

    def changed(name: str, state: str) -> Callable[[Any], Any]:
        if "NotImplementedError" not in taken(Monitoring, name, "self").__code__.co_names:
            raise ShimMisfit(f"moto has {name} by now: drop the change")

        def call(self: Any) -> Any:

            told = []
            for instance_id in self._get_param("InstanceIds", []):
                self.ec2_backend.get_instance(instance_id).monitoring_state = state
                told.append({"InstanceId": instance_id, "Monitoring": {"State": state}})
            return ActionResult({"InstanceMonitorings": told})

        return call

    Monitoring.monitor_instances = changed("monitor_instances", "enabled")
    Monitoring.unmonitor_instances = changed("unmonitor_instances", "disabled")


def keep_zones_private() -> None:
    """A zone that is made with a VPC is private, as on AWS; moto wants to be told so, too."""
    from moto.route53.responses import Route53

    create = taken(Route53, "create_hosted_zone", "self")
    taken(
        Route53Backend,
        "create_hosted_zone",
        "self name private_zone caller_reference vpcid vpcregion comment delegation_set_id",
    )

    def create_private(self: Any) -> Any:
        asked = self._get_bool_param

        def is_private(name: str, default: Any = None) -> Any:
            of_vpc = name == "HostedZoneConfig.PrivateZone" and self._get_param("VPC.VPCId")
            return True if of_vpc else asked(name, default)

        self._get_bool_param = is_private
        try:
            return create(self)
        finally:
            del self._get_bool_param

    Route53.create_hosted_zone = create_private


def name_network_load_balancers() -> None:
    """The ARN says which kind of load balancer it is: net or app."""
    make_arn = taken(balancing, "make_arn_for_load_balancer", "account_id lb_id name region_name")
    create = taken(
        balancing.ELBv2Backend,
        "create_load_balancer",
        "self name security_groups subnet_ids subnet_mappings scheme loadbalancer_type "
        "ip_address_type tags",
    )

    making = threading.local()  # requests are served by threads

    def arn(**parts: str) -> str:
        made: str = make_arn(**parts)
        return made.replace(":loadbalancer/app/", f":loadbalancer/{making.kind}/")

    def create_named(self: Any, *arguments: Any, **named: Any) -> Any:
        bound = inspect.signature(create).bind(self, *arguments, **named)
        making.kind = "net" if bound.arguments.get("loadbalancer_type") == "network" else "app"
        return create(*bound.args, **bound.kwargs)

    balancing.make_arn_for_load_balancer = arn
    balancing.ELBv2Backend.create_load_balancer = create_named


def tell_whether_rules_hold_for_private_link() -> None:
    """A load balancer keeps whether the rules of its groups hold for traffic of PrivateLink."""
    change = taken(ELBV2Response, "set_security_groups", "self")
    argument = "EnforceSecurityGroupInboundRulesOnPrivateLinkTraffic"

    def kept(self: Any) -> Any:
        answer = change(self)
        balancer = self.elbv2_backend.load_balancers[self._get_param("LoadBalancerArn")]
        if given := self._get_param(argument):
            balancer.enforce_security_group_inbound_rules_on_private_link_traffic = given
        return answer

    ELBV2Response.set_security_groups = kept


def part_tags_of_launch_templates() -> None:
    """A launch template's own tags are not among those of the instances it makes."""
    make = taken(
        LaunchTemplate, "__init__", "self backend name template_data version_description tag_spec"
    )

    def parted(self: Any, backend: Any, name: str, data: Any, *rest: Any, **named: Any) -> None:
        kept = [
            one
            for one in data.pop("TagSpecifications", [])
            if one["ResourceType"] != "launch-template"
        ]
        make(
            self,
            backend,
            name,
            data | ({"TagSpecifications": kept} if kept else {}),
            *rest,
            **named,
        )

    LaunchTemplate.__init__ = parted


def describe_rules() -> None:
    """A rule of a group or a prefix list keeps its description, as one of addresses does."""
    make = taken(
        SecurityGroupRule,
        "__init__",
        "self ec2_backend ip_protocol group_id from_port to_port ip_range source_group "
        "prefix_list_id is_egress tags",
    )
    if not isinstance(inspect.getattr_static(SecurityGroupRule, "description", None), property):
        raise ShimMisfit("SecurityGroupRule.description is no property")

    def described(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        given = inspect.signature(make).bind(self, *arguments, **named).arguments
        sources = [given.get("ip_range"), given.get("source_group"), given.get("prefix_list_id")]
        told = [one["Description"] for one in sources if one and one.get("Description")]
        self.told = next(iter(told), None)

    def description(self: Any) -> Any:
        return self.ip_range.get("Description") or self.told

    SecurityGroupRule.__init__ = described
    SecurityGroupRule.description = property(description)


def free_interfaces() -> None:
    """An interface has one instance, places it, and is free for the next one if it outlives it."""
    make = taken(Instance, "__init__", "self ec2_backend image_id user_data security_groups kwargs")
    terminate = taken(Instance, "terminate", "self")
    attach = taken(
        NetworkInterfaceBackend,
        "attach_network_interface",
        "self eni_id instance_id device_index",
    )

    def attach_checked(self: Any, eni_id: str, instance_id: str, device_index: int) -> Any:
        interface, instance = self.get_network_interface(eni_id), self.get_instance(instance_id)
        if interface.attachment_id:
            raise refused("InvalidNetworkInterface.InUse", f"Interface {eni_id} is in use.")
        if int(device_index) in instance.nics:
            raise refused(
                "InvalidParameterValue",
                f"Instance '{instance_id}' already has an interface attached at device index "
                f"'{device_index}'.",
            )
        return attach(self, eni_id, instance_id, device_index)

    def placed(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        given = {one.get("NetworkInterfaceId") for one in named.get("nics") or ()}
        for interface in self.nics.values():  # what is made with an instance ends with it
            if interface.id not in given:
                interface.delete_on_termination = True
        if 0 in self.nics:  # given by its id, it brings its subnet, and the subnet its zone
            self._placement.zone = self.nics[0].subnet.availability_zone

    def freeing(self: Any) -> Any:
        before = terminate(self)
        for interface in self.nics.values():
            if not interface.delete_on_termination:
                interface.instance = interface.attachment_id = interface.attach_time = None
                interface.status, interface.device_index = "available", None
        return before

    Instance.__init__ = placed
    Instance.terminate = freeing
    NetworkInterfaceBackend.attach_network_interface = attach_checked


def let_settings_through_without_tls() -> None:
    """Terraform and hosts' reports come by plain HTTP here, which the bucket's policy refuses: not
    for settings and reports. Anything else is refused, as on AWS.
    """
    permission = taken(FakeBucket, "get_permission", "self action resource")

    def permitted(self: Any, action: str, resource: str) -> Any:
        if "-settings/" in resource or "/hosts/" in resource:
            return PermissionResult.NEUTRAL
        return permission(self, action, resource)

    FakeBucket.get_permission = permitted
