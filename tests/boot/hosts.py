"""The machines of a cloud: each slot's instance booted, as a guest or as a container."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.boot.cloud import NODES, Cloud, Described, add_guest_address
from tests.boot.container import GATEWAY, contained, mount_image
from tests.boot.guest import booted, host_address
from tests.boot.image import Image
from tests.boot.machine import Hardware, Machine, Volume
from tests.boot.metadata import InstanceFacts, service_of
from tests.support.fake_imds import FakeImds

KAFKA_PORT = 9092
VOLUME_GIB = 10


@dataclass(slots=True, kw_only=True)
class Hosts:
    """What is running; `metadata` is what the metadata service tells whom."""

    image: Image
    cloud: Cloud
    folder: Path
    stack: ExitStack
    in_containers: bool
    metadata: dict[str | int, FakeImds] = field(default_factory=dict)

    def boot(self, slot: str) -> Machine:
        """Start a slot's instance on a new root disk."""
        described = self.cloud.instances[slot]
        return self._container(described) if self.in_containers else self._guest(described)

    def _container(self, described: Described) -> Machine:
        mounted = self.folder / "image"
        if not mounted.exists():
            mount_image(self.image, mounted)
        self.metadata[described.address] = service_of(self._facts(described))
        return self.stack.enter_context(
            contained(
                mounted,
                self._hardware(described, self.cloud.variables(GATEWAY)),
                self.folder / described.slot,
                described.user_data,
            )
        )

    def _guest(self, described: Described) -> Machine:
        add_guest_address(described.address)
        others = [one.address for one in self.cloud.instances.values() if one != described]
        variables = self.cloud.variables(host_address(described.address, others))
        hardware = self._hardware(described, variables, self._volume(described))
        folder = self.folder / described.slot
        guest = self.stack.enter_context(booted(self.image, hardware, folder, others))
        self.metadata[guest.process.pid] = service_of(self._facts(described))
        return guest

    def _hardware(
        self, described: Described, variables: dict[str, str], *volumes: Volume
    ) -> Hardware:
        return Hardware(
            name=described.slot,
            instance_id=described.instance_id,
            address=described.address,
            mac=described.mac,
            ports=[KAFKA_PORT + number for number in range(NODES)],
            cores=NODES,
            environment=variables,
            volumes=volumes,
        )

    def _facts(self, described: Described) -> InstanceFacts:
        return InstanceFacts(
            instance_id=described.instance_id,
            region=self.cloud.s3.region,
            zone=described.zone,
            address=described.address,
            subnet=described.subnet,
            mac=described.mac,
            user_data=described.user_data,
            tags=described.tags,
            access_key=self.cloud.s3.access_key,
            secret_key=self.cloud.s3.secret_key,
        )

    def _volume(self, described: Described) -> Volume:
        """Return a slot's volume, empty at first."""
        file = self.folder / f"{described.slot}.volume"
        with file.open("ab") as disk:
            disk.truncate(VOLUME_GIB << 30)
        return Volume(volume_id=described.volume_id, file=file)
