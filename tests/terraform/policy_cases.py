"""What roles must never be allowed, and what they may though no recorded call needs it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.terraform.policy_evaluation import Request

ACCOUNT, REGION, BUCKET = "123456789012", "us-east-1", "lake-bucket"
BUCKET_ARN = f"arn:aws:s3:::{BUCKET}"
SETTINGS = f"{BUCKET_ARN}/lakehead-settings/brokers.toml"
AGENT = f"{BUCKET_ARN}/lakehead-settings/cloudwatch.jsonl"
LOG_GROUPS = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/00000000-0000-0000-0000-000000000000"
PACKAGE_KEY = KEY.replace("0000-000000000000", "0000-000000000002")
NODE_KEY = KEY.replace("0000-000000000000", "0000-000000000003")
_CLUSTER_CONTEXT = "kms:EncryptionContext:lakehead:cluster"
OF_CLUSTER = {_CLUSTER_CONTEXT: f"{BUCKET}/lakehead"}
GLUE = f"arn:aws:glue:{REGION}:{ACCOUNT}"
OTHER_KEY = KEY.replace("0000-000000000000", "0000-000000000001")
PACKAGES = "arn:aws:s3:::packages"
THROUGH_S3 = {"kms:ViaService": f"s3.{REGION}.amazonaws.com"}
ROLES = {
    "broker": (
        "module.brokers.aws_iam_role_policy.broker",
        "module.elastic[0].aws_iam_role_policy.scaling",
    ),
    "spark": ("module.lake[0].aws_iam_role_policy.spark",),
    "airflow": ("module.airflow[0].aws_iam_role_policy.airflow",),
}
"""The policies that each role has, where they are made."""

OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")
_WRITES = OBJECTS[1:]


class Case(NamedTuple):
    """A request, and what it is about or why it must be denied, for people."""

    why: str
    action: str
    resource: str = "*"
    context: Mapping[str, str] = {}


def never(who: str) -> Iterator[Case]:
    """Yield what a role must never be allowed."""
    for action in _WRITES if who == "broker" else OBJECTS:
        yield Case("the brokers' settings", action, SETTINGS)
        yield Case("what agents do", action, AGENT)
    for action in OBJECTS:
        for place in ("other/x", "lakehead-2/x", "lakehead", "tables-2/x", "x"):
            yield Case("another prefix", action, f"{BUCKET_ARN}/{place}")
        yield Case("another bucket", action, f"{BUCKET_ARN}-2/lakehead/x")
        yield Case("another bucket", action, "arn:aws:s3:::other/tables/x")
    yield Case("another bucket", "s3:ListBucket", f"{BUCKET_ARN}-2")
    yield Case("another bucket", "s3:ListAllMyBuckets")
    for action in _OF_BUCKETS:
        yield Case("the bucket's settings", action, BUCKET_ARN)
    for action in _OF_OBJECTS:
        for place in ("lakehead/data/x", "tables/t/x"):
            yield Case("more than an object", action, f"{BUCKET_ARN}/{place}")
    yield from _keys(("ec2", "ssm") if who == "airflow" else ("ec2", "secretsmanager", "ssm"))
    for action in _OF_ACCOUNTS:
        yield Case("the account", action)
        yield Case("the account", action, f"arn:aws:iam::{ACCOUNT}:role/admin")
    yield from _machines()
    yield from {"broker": _broker, "spark": _spark, "airflow": _airflow}[who]()


_OF_BUCKETS = (
    *("s3:CreateBucket", "s3:DeleteBucket", "s3:DeleteBucketPolicy", "s3:PutBucketPolicy"),
    *("s3:PutBucketAcl", "s3:PutBucketLogging", "s3:PutBucketNotification", "s3:PutBucketCORS"),
    *("s3:PutBucketOwnershipControls", "s3:PutBucketPublicAccessBlock", "s3:PutBucketVersioning"),
    *("s3:PutEncryptionConfiguration", "s3:PutLifecycleConfiguration", "s3:PutBucketTagging"),
    *("s3:PutReplicationConfiguration", "s3:PutBucketObjectLockConfiguration"),
    *("s3:PutBucketWebsite", "s3:GetBucketPolicy", "s3:ListBucketVersions"),
)
_OF_OBJECTS = (
    *("s3:PutObjectAcl", "s3:PutObjectRetention", "s3:PutObjectLegalHold", "s3:PutObjectTagging"),
    *("s3:DeleteObjectVersion", "s3:GetObjectVersion", "s3:BypassGovernanceRetention"),
    *("s3:RestoreObject", "s3:ReplicateObject", "s3:ObjectOwnerOverrideToBucketOwner"),
)
_OF_ACCOUNTS = (
    *("iam:PassRole", "iam:CreateRole", "iam:PutRolePolicy", "iam:AttachRolePolicy"),
    *("iam:CreateAccessKey", "iam:CreateUser", "iam:UpdateAssumeRolePolicy", "iam:ListRoles"),
    *("iam:AddRoleToInstanceProfile", "iam:DeleteRolePolicy", "sts:AssumeRole"),
    *("organizations:LeaveOrganization", "cloudtrail:StopLogging", "lambda:CreateFunction"),
)


def _keys(services: tuple[str, ...]) -> Iterator[Case]:
    for action in ("kms:Decrypt", "kms:GenerateDataKey"):
        yield Case("the key without S3", action, KEY)
        for service in services:
            through = {"kms:ViaService": f"{service}.{REGION}.amazonaws.com"}
            yield Case("the key by another service", action, KEY, through)
        elsewhere = {"kms:ViaService": "s3.eu-west-1.amazonaws.com"}
        yield Case("the key in another region", action, KEY, elsewhere)
        yield Case("another key", action, OTHER_KEY, THROUGH_S3)
        for place in ("arn:aws:s3:::other", f"{BUCKET_ARN}-2", f"{BUCKET_ARN}-2/lakehead/x"):
            of_other = {**THROUGH_S3, "kms:EncryptionContext:aws:s3:arn": place}
            yield Case("another key, for another bucket", action, OTHER_KEY, of_other)
        of_ours = {"kms:EncryptionContext:aws:s3:arn": BUCKET_ARN}
        yield Case("another key, without S3", action, OTHER_KEY, of_ours)
        yield Case("the nodes' key, for no cluster", action, NODE_KEY)
        yield Case("the nodes' key by S3", action, NODE_KEY, THROUGH_S3)
        for place in (f"{BUCKET}/lakehead-2", f"{BUCKET}-2/lakehead", BUCKET, "other/lakehead"):
            of_other = {_CLUSTER_CONTEXT: place}
            yield Case("the nodes' key, for another cluster", action, NODE_KEY, of_other)
        yield Case("another key, for the cluster", action, OTHER_KEY, OF_CLUSTER)
    for action in ("Encrypt", "ReEncryptFrom", "CreateGrant", "PutKeyPolicy", "DisableKey"):
        yield Case("the key itself", f"kms:{action}", KEY, THROUGH_S3)
    yield Case("the key itself", "kms:ScheduleKeyDeletion", KEY)


def _machines() -> Iterator[Case]:
    ec2 = f"arn:aws:ec2:{REGION}:{ACCOUNT}"
    for action in ("RunInstances", "TerminateInstances", "StopInstances", "RebootInstances"):
        yield Case("machines", f"ec2:{action}", f"{ec2}:instance/i-1")
    for action in ("CreateVolume", "DeleteVolume", "ModifyVolume", "CreateSnapshot"):
        yield Case("volumes", f"ec2:{action}", f"{ec2}:volume/vol-1")
    for action in ("CreateTags", "DeleteTags"):
        for kind in ("instance/i-1", "volume/vol-1"):
            yield Case("tags, which decide what may be attached", f"ec2:{action}", f"{ec2}:{kind}")
    for action in ("DetachNetworkInterface", "DeleteNetworkInterface"):
        yield Case("slots", f"ec2:{action}", f"{ec2}:network-interface/eni-1")
    group = f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:0-0:autoScalingGroupName"
    for action in ("SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"):
        yield Case("the group", f"autoscaling:{action}", f"{group}/lakehead")
    for name in ("other", "lakehead-2"):
        for action in ("CompleteLifecycleAction", "SetInstanceHealth"):
            yield Case("another group", f"autoscaling:{action}", f"{group}/{name}")
    for action in ("ModifyInstanceAttribute", "AssociateIamInstanceProfile"):
        yield Case("machines", f"ec2:{action}", f"{ec2}:instance/i-1")
    yield Case("the network", "ec2:AuthorizeSecurityGroupIngress", f"{ec2}:security-group/sg-1")
    for secret in ("lakehead", "other"):
        arn = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret:{secret}-AbCdEf"
        yield Case("secrets", "secretsmanager:GetSecretValue", arn)
    for name in ("password", "airflow/connections/other_default"):
        arn = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/{name}"
        for action in ("GetParameter", "GetParameters", "GetParametersByPath", "PutParameter"):
            yield Case("parameters", f"ssm:{action}", arn)
    for action in ("SendCommand", "StartSession", "GetDocument", "GetManifest"):
        yield Case("commands on machines", f"ssm:{action}")


def _broker() -> Iterator[Case]:
    for name in ("tls", "first-admin"):
        own = f"{_SECRETS}:lakehead/{name}-AbCdEf"
        for action in ("PutSecretValue", "UpdateSecret", "DeleteSecret", "PutResourcePolicy"):
            yield Case("secrets are read only", f"secretsmanager:{action}", own)
        for other in (
            f"lakehead/{name}-2-AbCdEf",
            f"other/{name}-AbCdEf",
            "lakehead/airflow-AbCdEf",
        ):
            arn = f"{_SECRETS}:{other}"
            yield Case("other secrets", "secretsmanager:GetSecretValue", arn)
            of_other = {**_THROUGH_SECRETS, _SECRET_CONTEXT: arn}
            yield Case("the key of another secret", "kms:Decrypt", KEY, of_other)
    yield Case("all secrets", "secretsmanager:ListSecrets")
    yield Case("all secrets", "secretsmanager:BatchGetSecretValue")
    for action in OBJECTS:
        yield Case("tables", action, f"{BUCKET_ARN}/tables/orders/part-0.parquet")
    yield from _packages("lakehead")
    for key in ("lakehead-settings/other.toml", "lakehead-settings/brokers.toml.bak"):
        for action in OBJECTS:
            yield Case("beside the settings", action, f"{BUCKET_ARN}/{key}")
    yield from _logs()


def _logs() -> Iterator[Case]:
    own = [f"{LOG_GROUPS}:lakehead-{BUCKET}/{kind}" for kind in ("journal", "metrics")]
    for group in own:
        for action in ("DeleteLogGroup", "DeleteLogStream", "PutRetentionPolicy", "CreateLogGroup"):
            yield Case("evidence", f"logs:{action}", f"{group}:log-stream:a-0")
        for action in ("GetLogEvents", "FilterLogEvents", "StartQuery", "PutSubscriptionFilter"):
            yield Case("what other hosts have shipped", f"logs:{action}", f"{group}:log-stream:a-0")
    for other in (f"lakehead-{BUCKET}-2/journal", f"lakehead-{BUCKET}/other", "lakehead/journal"):
        for action in ("CreateLogStream", "PutLogEvents"):
            yield Case("another group", f"logs:{action}", f"{LOG_GROUPS}:{other}:log-stream:a-0")
    yield Case("all groups", "logs:DescribeLogGroups", f"{LOG_GROUPS}:*")
    for namespace in ("Lakehead", "AWS/EC2"):
        context = {"cloudwatch:namespace": namespace}
        yield Case("metrics beside log events", "cloudwatch:PutMetricData", "*", context)


def _spark() -> Iterator[Case]:
    for folder in ("data", "meta", "wal", "check"):
        for action in _WRITES:
            yield Case("the cluster is read only", action, f"{BUCKET_ARN}/lakehead/{folder}/x")
    yield Case("uploads of others", "s3:ListBucketMultipartUploads", BUCKET_ARN)
    for action in ("glue:DeleteDatabase", "glue:CreateDatabase", "glue:UpdateDatabase"):
        yield Case("databases", action, f"{GLUE}:database/lake")
    for action in ("glue:DeleteTable", "glue:GetTable", "glue:GetTables"):
        yield Case("other tables", action, f"{GLUE}:table/other/orders")
    yield Case("packages", "s3:GetObject", f"{PACKAGES}/lakehead/x.whl")


def _packages(folder: str) -> Iterator[Case]:
    for action in _WRITES:
        yield Case("packages are read only", action, f"{PACKAGES}/{folder}/x.whl")
    yield Case("other packages", "s3:GetObject", f"{PACKAGES}/other/x.whl")
    yield Case("other packages", "s3:ListBucket", PACKAGES)
    for prefix in ("", "other/", f"{folder}-2/"):
        yield Case("other packages", "s3:ListBucket", PACKAGES, {"s3:prefix": prefix})


def _airflow() -> Iterator[Case]:
    yield from _packages("lakehead/airflow")
    yield Case("brokers' packages", "s3:GetObject", f"{PACKAGES}/lakehead/x.whl")
    for other in ("lakehead/tls-AbCdEf", "lakehead/airflow-2-AbCdEf", "other/airflow-AbCdEf"):
        yield Case("other secrets", "secretsmanager:PutSecretValue", f"{_SECRETS}:{other}")
    yield Case("secrets", "secretsmanager:GetSecretValue", f"{_SECRETS}:lakehead/airflow-AbCdEf")


_SECRETS = f"arn:aws:secretsmanager:{REGION}:{ACCOUNT}:secret"
_THROUGH_SECRETS = {"kms:ViaService": f"secretsmanager.{REGION}.amazonaws.com"}
_SECRET_CONTEXT = "kms:EncryptionContext:SecretARN"
EARLIER_KEYS = tuple(
    Case(
        "what was written by a key that the cluster had before",
        f"kms:{action}",
        f"arn:aws:kms:{REGION}:{account}:key/11111111-0000-0000-0000-000000000000",
        {**THROUGH_S3, "kms:EncryptionContext:aws:s3:arn": place},
    )
    for action in ("Decrypt", "GenerateDataKey")
    for account in (ACCOUNT, "210987654321")
    for place in (BUCKET_ARN, f"{BUCKET_ARN}/lakehead/data/a/0-0-0")
)
"""With a bucket key S3 names the bucket to KMS, else the object (S3's user guide, SSE-KMS)."""

STATED: Mapping[str, tuple[Case, ...]] = {
    "broker": (
        *EARLIER_KEYS,
        Case("user data: aws s3 cp", "s3:ListBucket", PACKAGES, {"s3:prefix": "lakehead/"}),
        Case("user data: aws s3 cp", "s3:GetObject", f"{PACKAGES}/lakehead/lakehead-1.0.whl"),
        Case("user data: settings", "s3:GetObject", SETTINGS),
        Case("user data: the agent's configuration", "s3:GetObject", AGENT),
        Case("user data: reports", "s3:PutObject", f"{BUCKET_ARN}/lakehead/hosts/a-0/settings-0"),
    ),
    "spark": (
        *EARLIER_KEYS,
        Case("Databricks' example, EMR's file system", "s3:GetBucketLocation", BUCKET_ARN),
    ),
    "airflow": (
        *EARLIER_KEYS,
        Case("user data: aws s3 cp", "s3:ListBucket", PACKAGES, {"s3:prefix": "lakehead/airflow/"}),
        Case("user data: aws s3 cp", "s3:GetObject", f"{PACKAGES}/lakehead/airflow/x.whl"),
        Case("user data", "secretsmanager:PutSecretValue", f"{_SECRETS}:lakehead/airflow-AbCdEf"),
        # "Secret encryption and decryption" of Secrets Manager's user guide.
        Case("user data, by the secret's key", "kms:GenerateDataKey", KEY, _THROUGH_SECRETS),
        Case("user data, by the secret's key", "kms:Decrypt", KEY, _THROUGH_SECRETS),
        Case(
            "Airflow's Systems Manager backend",
            "ssm:GetParameter",
            f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/airflow/connections/lakehead_default",
        ),
    ),
}
"""Calls of programs that are not ours and do not run here: read, not recorded."""

_ENTERED = (
    # "Adding Session Manager permissions to an existing IAM role" of Systems Manager's user guide.
    Case("SSM Agent", "ssm:UpdateInstanceInformation"),
    Case("SSM Agent", "ssmmessages:CreateControlChannel"),
    Case("SSM Agent", "ssmmessages:CreateDataChannel"),
    Case("SSM Agent", "ssmmessages:OpenControlChannel"),
    Case("SSM Agent", "ssmmessages:OpenDataChannel"),
    Case("user data, by the packages' key", "kms:Decrypt", PACKAGE_KEY, THROUGH_S3),
)
_SECURED = tuple(
    # "Secret encryption and decryption" of Secrets Manager's user guide: the ARN is KMS's context.
    case
    for name in ("tls", "first-admin")
    for arn in [f"{_SECRETS}:lakehead/{name}-AbCdEf"]
    for case in (
        Case("lakehead settings secrets", "secretsmanager:GetSecretValue", arn),
        Case("its key", "kms:Decrypt", KEY, {**_THROUGH_SECRETS, _SECRET_CONTEXT: arn}),
    )
)
_ENCRYPTED = (
    Case("data keys, read", "kms:Decrypt", NODE_KEY, OF_CLUSTER),
    Case("data keys, made", "kms:GenerateDataKey", NODE_KEY, OF_CLUSTER),
)
STATED_OF_RUNS: Mapping[tuple[str, str], tuple[Case, ...]] = {
    **{(run, "broker"): _SECURED for run in ("object", "io2", "gp3", "scaling", "express")},
    ("encrypted", "broker"): _SECURED + _ENCRYPTED,
    ("encrypted", "airflow"): _ENCRYPTED,
    ("encrypted", "spark"): _ENCRYPTED[:1],
    ("entered", "broker"): _ENTERED + _SECURED,
    ("watched", "broker"): _SECURED
    + tuple(
        # What the agent's release 1.300071 calls where the groups are there (without a retention).
        Case("CloudWatch agent", f"logs:{action}", f"{LOG_GROUPS}:{group}:log-stream:{stream}")
        for action in ("CreateLogStream", "PutLogEvents")
        for group, stream in (
            (f"lakehead-{BUCKET}/journal", "lakehead-a-0/i-1"),
            (f"lakehead-{BUCKET}/metrics", "lakehead-a-0"),
        )
    ),
    ("entered", "airflow"): _ENTERED,
}
"""More of these, by how they were rendered and the role."""

_DOCUMENTED_GLUE = (
    *("GetDatabase", "GetDatabases", "CreateTable", "GetTable", "UpdateTable", "DeleteTable"),
    *("GetTables", "GetPartition", "GetPartitions", "CreatePartition", "BatchCreatePartition"),
    "GetUserDefinedFunctions",
)
DOCUMENTED: Mapping[str, tuple[Case, ...]] = {
    "spark": (
        *(
            # "Job runtime roles for Amazon EMR Serverless"; of databases one is made by Terraform.
            Case("EMR's example", f"glue:{action}", f"{GLUE}:database/lake")
            for action in _DOCUMENTED_GLUE
        ),
        *(
            # Databricks' example of a storage credential.
            Case("Databricks' example", f"s3:{action}", f"{BUCKET_ARN}/tables/orders/x")
            for action in ("GetObject", "PutObject", "DeleteObject")
        ),
        Case("Databricks' example", "s3:ListBucket", BUCKET_ARN),
        Case("Databricks' example", "s3:GetBucketLocation", BUCKET_ARN),
    ),
}
"""What engines call on AWS by the documentation of AWS and Databricks."""

UNRECORDED: Mapping[tuple[str, str], str] = {
    ("broker", "ExpressLog"): "a directory bucket of S3 Express: no server here has them",
    ("spark", "Tables"): "Spark's Glue catalog on EMR: there is no Glue here",
    ("spark", "DefaultDatabase"): "Spark's Glue catalog on EMR: there is no Glue here",
    ("spark", "ListDatabases"): "Spark's Glue catalog on EMR: there is no Glue here",
}
"""By role and statement's Sid: why no call needs it here."""

FOR_FAILURES: Mapping[tuple[str, str, str, str], str] = {
    ("airflow", "TopicsAndTables", "s3:AbortMultipartUpload", f"{BUCKET_ARN}/tables/*"): (
        "delta-rs gives up what it began in parts when a write fails"
    ),
}
"""By role, Sid, action and resource: what is allowed for when something fails."""


def request(case: Case, who: str) -> Request:
    """Return the request of a case, made by a role over TLS."""
    return Request(
        action=case.action,
        resource=case.resource,
        principal=f"arn:aws:iam::{ACCOUNT}:role/lakehead-{who}",
        context={"aws:SecureTransport": "true", **case.context},
    )
