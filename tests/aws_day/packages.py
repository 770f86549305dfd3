"""The packages that hosts install: built as docs/deploy.md says, in a bucket of the run."""

import hashlib
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.aws_day.account import Account
from tests.aws_day.day_ledger import Ledger
from tests.aws_day.preflight import NotReady

PROJECT = Path(__file__).resolve().parents[2]
TRIAL = "packages"
_BUILD_S = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Where Lakehead's wheel lies, and the checksum of the list beside it."""

    wheel: str
    sha256: str


def build(folder: Path) -> None:
    """Build the wheel and all that it needs into a folder. Raises NotReady."""
    folder.mkdir(parents=True, exist_ok=True)
    pinned = re.findall(
        r"^[A-Za-z0-9._-]+==\S+", (PROJECT / "requirements/dev.txt").read_text(), re.MULTILINE
    )
    constraints = folder.parent / "constraints.txt"
    constraints.write_text("\n".join(pinned) + "\n")
    done = subprocess.run(
        ["python3.11", "-m", "pip", "wheel", "--quiet", "--constraint", constraints,
         "--wheel-dir", folder, f"{PROJECT}[client,compaction,s3]"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=_BUILD_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise NotReady(f"The packages cannot be built, and nothing was made: {done.stdout[-800:]}")


def pretend(folder: Path) -> None:
    """Put a wheel into a folder that is none, for a dry run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lakehead-1.0-py3-none-any.whl").write_bytes(b"of a dry run")


def upload(account: Account, ledger: Ledger, folder: Path) -> Packages:
    """Upload a folder of wheels into a bucket of the run, which is made if it is not there."""
    wheels = sorted(folder.glob("*.whl"))
    ours = [one for one in wheels if one.name.startswith("lakehead-")]
    if len(ours) != 1:
        raise NotReady(f"{folder} has not one wheel of Lakehead, but {len(ours)}.")
    sums = "".join(f"{hashlib.sha256(w.read_bytes()).hexdigest()}  {w.name}\n" for w in wheels)
    s3, bucket = account.client("s3"), account.bucket(TRIAL)
    ledger.write(TRIAL, "intended", "bucket", bucket)
    place = {} if account.region == "us-east-1" else {"LocationConstraint": account.region}
    if bucket not in {one["Name"] for one in s3.list_buckets()["Buckets"]}:
        s3.create_bucket(Bucket=bucket, **({"CreateBucketConfiguration": place} if place else {}))
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": account.tags(TRIAL)})
    for one in wheels:
        s3.upload_file(str(one), bucket, f"lakehead/{one.name}")
    s3.put_object(Bucket=bucket, Key="lakehead/SHA256SUMS", Body=sums.encode())
    return Packages(
        wheel=f"s3://{bucket}/lakehead/{ours[0].name}",
        sha256=hashlib.sha256(sums.encode()).hexdigest(),
    )
