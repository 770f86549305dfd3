"""The evaluation of IAM policies against what AWS publishes of its own.

Policies and outcomes are those of the IAM user guide and the S3 user guide; each test names its
page by the end of its address.
"""

from typing import Any

import pytest

from tests.terraform.policy_evaluation import (
    Decision,
    Policy,
    Request,
    UnknownElement,
    action_matches,
    arn_matches,
    decide,
    decide_by_key,
)

ALLOWED, IMPLICIT, EXPLICIT = Decision
VERSION = "2012-10-17"
CARLOS = "arn:aws:iam::111122223333:user/carlossalazar"
ROLE = "arn:aws:iam::111122223333:role/broker"


def policy(*statements: dict[str, Any]) -> Policy:
    return {"Version": VERSION, "Statement": list(statements)}


def allow(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return allow(action, resource, **more) | {"Effect": "Deny"}


def where(condition: dict[str, Any], **context: Any) -> bool:
    """Return true if a condition holds in a context, whose keys have `__` for their colon."""
    keys = {name.replace("__", ":"): value for name, value in context.items()}
    request = Request(action="s3:GetObject", context=keys)
    return decide(request, [policy(allow("*", Condition=condition))]) is ALLOWED


class TestPublishedPolicies:
    """Whole policies with the requests that the guides discuss."""

    # reference_policies_evaluation-logic_policy-eval-basics
    BUCKET = "arn:aws:s3:::amzn-s3-demo-bucket-carlossalazar"
    OF_CARLOS = policy(
        allow(["s3:GetBucketLocation", "s3:ListAllMyBuckets"], "arn:aws:s3:::*"),
        allow("s3:*", [f"{BUCKET}/*", BUCKET]),
        deny("s3:*", "arn:aws:s3:::*log*"),
    )
    OF_LOGS = policy(
        allow("s3:*", [f"{BUCKET}-logs/*", f"{BUCKET}-logs"], Principal={"AWS": CARLOS})
    )
    OF_BUCKET = policy(allow("s3:*", f"{BUCKET}-other/*", Principal={"AWS": CARLOS}))

    @pytest.mark.parametrize(
        ("action", "resource", "attached", "decision"),
        [
            ("s3:PutObject", f"{BUCKET}/a.txt", None, ALLOWED),
            ("s3:GetBucketLocation", "arn:aws:s3:::any", None, ALLOWED),
            ("s3:PutObject", f"{BUCKET}-logs/a.txt", None, EXPLICIT),
            # The bucket says yes, the identity's Deny outweighs it.
            ("s3:PutObject", f"{BUCKET}-logs/a.txt", OF_LOGS, EXPLICIT),
            ("s3:PutObject", "arn:aws:s3:::another/a.txt", None, IMPLICIT),
            # Either of the two is enough.
            ("s3:PutObject", f"{BUCKET}-other/a.txt", OF_BUCKET, ALLOWED),
        ],
    )
    def test_carlos(
        self, action: str, resource: str, attached: Policy | None, decision: Decision
    ) -> None:
        request = Request(action=action, resource=resource, principal=CARLOS)
        assert decide(request, [self.OF_CARLOS], attached) is decision

    # reference_policies_evaluation-logic_AccessPolicyLanguage_Interplay
    @pytest.mark.parametrize(
        ("action", "decision"),
        [
            ("iam:GetUser", ALLOWED),
            ("iam:ListRoles", ALLOWED),
            ("iam:CreatePolicy", IMPLICIT),
            ("iam:GetOrganizationsAccessReport", EXPLICIT),
            ("iam:GenerateCredentialReport", EXPLICIT),
        ],
    )
    def test_explicit_and_implicit(self, action: str, decision: Decision) -> None:
        held = policy(allow(["iam:Get*", "iam:List*"]), deny("iam:*Report"))
        more = policy(allow("iam:GenerateCredentialReport"))
        assert decide(Request(action=action), [held, more]) is decision

    # reference_policies_elements_notaction
    def test_not_action(self) -> None:
        bucket = "arn:aws:s3:::any"
        held = policy(
            {"Effect": "Allow", "NotAction": "s3:DeleteBucket", "Resource": "arn:aws:s3:::*"}
        )
        assert decide(Request(action="s3:GetObject", resource=f"{bucket}/k"), [held]) is ALLOWED
        assert decide(Request(action="s3:DeleteBucket", resource=bucket), [held]) is IMPLICIT
        assert decide(Request(action="s3:ListAllMyBuckets"), [held]) is IMPLICIT
        no_mfa = {"BoolIfExists": {"aws:MultiFactorAuthPresent": "false"}}
        only_iam = policy(
            allow("*"),
            {"Effect": "Deny", "NotAction": "iam:*", "Resource": "*", "Condition": no_mfa},
        )
        mfa = {"aws:MultiFactorAuthPresent": "true"}
        assert decide(Request(action="ec2:RunInstances"), [only_iam]) is EXPLICIT
        assert decide(Request(action="ec2:RunInstances", context=mfa), [only_iam]) is ALLOWED
        assert decide(Request(action="iam:GetUser"), [only_iam]) is ALLOWED

    # reference_policies_elements_notresource
    def test_not_resource(self) -> None:
        payroll = "arn:aws:s3:::HRBucket/Payroll"
        kept = [payroll, f"{payroll}/*"]
        held = policy(allow("*"), {"Effect": "Deny", "Action": "s3:*", "NotResource": kept})
        assert decide(Request(action="s3:GetObject", resource=f"{payroll}/x"), [held]) is ALLOWED
        elsewhere = "arn:aws:s3:::HRBucket/other"
        assert decide(Request(action="s3:GetObject", resource=elsewhere), [held]) is EXPLICIT

    # AmazonS3 userguide: walkthrough1, and reference_policies_elements_condition_operators
    @pytest.mark.parametrize(
        ("prefix", "decision"),
        [
            ("", ALLOWED),
            ("home/", ALLOWED),
            ("home/bob/", ALLOWED),
            ("home/bob/deeper/", IMPLICIT),
            ("home/alice/", IMPLICIT),
            (None, IMPLICIT),
        ],
    )
    def test_home_directories(self, prefix: str | None, decision: Decision) -> None:
        named = {"StringLike": {"s3:prefix": ["", "home/", "home/${aws:username}/"]}}
        held = policy(
            allow("s3:ListBucket", "arn:aws:s3:::lake", Condition=named),
            allow("s3:*", "arn:aws:s3:::lake/home/${aws:username}/*"),
        )
        keys = {"aws:username": "bob"} | ({} if prefix is None else {"s3:prefix": prefix})
        listing = Request(action="s3:ListBucket", resource="arn:aws:s3:::lake", context=keys)
        assert decide(listing, [held]) is decision
        mine = Request(action="s3:PutObject", resource="arn:aws:s3:::lake/home/bob/x", context=keys)
        assert decide(mine, [held]) is ALLOWED
        hers = Request(action="s3:PutObject", resource="arn:aws:s3:::lake/home/eve/x", context=keys)
        assert decide(hers, [held]) is IMPLICIT
        nobody = Request(action="s3:PutObject", resource="arn:aws:s3:::lake/home//x")
        assert decide(nobody, [held]) is IMPLICIT

    # reference_policies_elements_condition_operators, "BooleanExample"
    @pytest.mark.parametrize(("secure", "decision"), [("true", ALLOWED), ("false", EXPLICIT)])
    def test_only_by_tls(self, secure: str, decision: Decision) -> None:
        resources = ["arn:aws:s3:::lake", "arn:aws:s3:::lake/*"]
        plain = {"Bool": {"aws:SecureTransport": "false"}}
        attached = policy(deny("s3:*", resources, Principal="*", Condition=plain))
        request = Request(
            action="s3:GetObject",
            resource="arn:aws:s3:::lake/k",
            principal=ROLE,
            context={"aws:SecureTransport": secure},
        )
        assert decide(request, [policy(allow("s3:*"))], attached) is decision

    # kms developerguide: key-policy-default, conditions-kms (kms:ViaService)
    def test_keys(self) -> None:
        key = "arn:aws:kms:us-east-1:111122223333:key/1"
        root = {"AWS": "arn:aws:iam::111122223333:root"}
        through = {"StringEquals": {"kms:ViaService": "s3.us-east-1.amazonaws.com"}}
        held = policy(allow("kms:Decrypt", key, Condition=through))
        by_s3 = {"kms:ViaService": "s3.us-east-1.amazonaws.com"}
        request = Request(action="kms:Decrypt", resource=key, principal=ROLE, context=by_s3)
        to_account = policy(allow("kms:*", Principal=root))
        assert decide_by_key(request, [held], to_account) is ALLOWED
        assert decide_by_key(request, [], to_account) is IMPLICIT, "the account only may give it"
        other = policy(allow("kms:*", Principal={"AWS": "arn:aws:iam::444455556666:root"}))
        assert decide_by_key(request, [held], other) is IMPLICIT
        directly = Request(action="kms:Decrypt", resource=key, principal=ROLE)
        assert decide_by_key(directly, [held], to_account) is IMPLICIT
        never = policy(allow("kms:*", Principal=root), deny("kms:Decrypt", Principal="*"))
        assert decide_by_key(request, [held], never) is EXPLICIT


class TestPublishedConditions:
    """reference_policies_elements_condition, ..._condition_operators, ...-multi-valued-..."""

    @pytest.mark.parametrize(
        ("operator", "value", "given", "holds"),
        [
            ("StringEquals", "john", "john", True),
            ("StringEquals", "john", "John", False),
            ("StringEquals", "john", None, False),
            ("StringEqualsIgnoreCase", "john", "JOHN", True),
            ("StringNotEquals", "john", "eve", True),
            ("StringNotEquals", "john", None, True),
            ("StringNotLike", "j*", None, True),
            ("StringLike", "t2.*", "t2.micro", True),
            ("StringLike", "t2.*", "T2.micro", False),
            ("StringLike", "Owner:??", "Owner:NY", True),
            ("StringLikeIfExists", ["t1.*", "t2.*", "m3.*"], None, True),
            ("StringLikeIfExists", ["t1.*", "t2.*", "m3.*"], "m3.large", True),
            ("StringLikeIfExists", ["t1.*", "t2.*", "m3.*"], "m5.large", False),
            ("StringNotEqualsIfExists", "john", None, True),
            ("Bool", "true", "true", True),
            ("Bool", "true", None, False),
            ("NumericLessThanEquals", "10", "10", True),
            ("NumericLessThanEquals", "10", "11", False),
            ("NumericLessThanEquals", "10", None, False),
            ("IpAddress", ["203.0.113.0/24", "2001:db8:1234:5678::/64"], "203.0.113.7", True),
            ("IpAddress", ["203.0.113.0/24", "2001:db8:1234:5678::/64"], "203.0.114.7", False),
            (
                "IpAddress",
                ["203.0.113.0/24", "2001:db8:1234:5678::/64"],
                "2001:db8:1234:5678::1",
                True,
            ),
            ("NotIpAddress", "203.0.113.0/24", "198.51.100.1", True),
            ("Null", "true", None, True),
            ("Null", "true", "set", False),
            ("Null", "false", "set", True),
            (
                "ArnLike",
                "arn:aws:sns:*:123456789012:t-*",
                "arn:aws:sns:eu-west-1:123456789012:t-1",
                True,
            ),
            ("ArnNotEquals", "arn:aws:sns:*:123456789012:t", None, True),
        ],
    )
    def test_operator(self, operator: str, value: Any, given: str | None, holds: bool) -> None:
        context = {} if given is None else {"aws__key": given}
        assert where({operator: {"aws:key": value}}, **context) is holds

    def test_a_string_matches_over_colons_and_an_arn_does_not(self) -> None:
        pattern = "arn:aws:someservice:*:111122223333:finance/*"
        crossing = (
            "arn:aws:someservice:us-east-2:999999999999:store/abc:111122223333:finance/document.txt"
        )
        assert where({"StringLike": {"aws:k": pattern}}, aws__k=crossing)
        assert not where({"ArnLike": {"aws:k": pattern}}, aws__k=crossing)

    ATTRIBUTES = ("PostDateTime", "Message", "Tags")

    @pytest.mark.parametrize(
        ("operator", "values", "given", "holds"),
        [
            ("ForAllValues:StringLike", ATTRIBUTES, ("PostDateTime", "Message"), True),
            ("ForAllValues:StringLike", ATTRIBUTES, ("PostDateTime", "UserName"), False),
            ("ForAllValues:StringLike", ATTRIBUTES, (), True),
            ("ForAllValues:StringLike", ATTRIBUTES, None, True),
            ("ForAllValues:StringLike", ATTRIBUTES, ("",), True),
            ("ForAnyValue:StringLike", ("ID", "PostDateTime"), ("PostDateTime", "Message"), True),
            ("ForAnyValue:StringLike", ("ID", "PostDateTime"), ("UserName",), False),
            ("ForAnyValue:StringLike", ("ID", "PostDateTime"), None, False),
            (
                "ForAnyValue:StringLike",
                ("Owner:*", "State:??"),
                ("owner:M", "State:NewYork"),
                False,
            ),
        ],
    )
    def test_sets(
        self, operator: str, values: tuple[str, ...], given: tuple[str, ...] | None, holds: bool
    ) -> None:
        context = {} if given is None else {"dynamodb__attributes": given}
        assert where({operator: {"dynamodb:attributes": values}}, **context) is holds

    def test_operators_and_keys_are_and_and_values_are_or(self) -> None:
        condition = {
            "StringEquals": {"aws:a": ["1", "2"], "aws:b": "3"},
            "Bool": {"aws:c": "true"},
        }
        assert where(condition, aws__a="2", aws__b="3", aws__c="true")
        assert not where(condition, aws__a="3", aws__b="3", aws__c="true")
        assert not where(condition, aws__a="2", aws__b="4", aws__c="true")
        assert not where(condition, aws__a="2", aws__b="3", aws__c="false")
        # Of a negated operator's values none may match.
        neither = {"StringNotEquals": {"aws:a": ["1", "2"]}}
        assert where(neither, aws__a="3")
        assert not where(neither, aws__a="2")

    def test_names_of_keys_are_of_any_case(self) -> None:
        assert where({"StringEquals": {"AWS:SourceVpc": "vpc-1"}}, aws__sourcevpc="vpc-1")

    # reference_policies_variables
    def test_variables(self) -> None:
        own = {"StringEquals": {"aws:a": "${aws:PrincipalTag/team, 'company-wide'}"}}
        assert where(own, aws__a="company-wide")
        assert not where({"StringEquals": {"aws:a": "${aws:b}"}}, aws__a="${aws:b}")
        assert where({"StringLike": {"aws:a": "x${*}"}}, aws__a="x*")
        assert not where({"StringLike": {"aws:a": "x${*}"}}, aws__a="xy")
        old = {"Statement": [allow("*", "arn:aws:s3:::b/${aws:username}")]}
        request = Request(action="s3:GetObject", resource="arn:aws:s3:::b/eve")
        assert decide(request, [old]) is IMPLICIT, "no variables before version 2012-10-17"


# reference_policies_elements_action, reference_policies_elements_resource
@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("iam:*AccessKey*", "iam:CreateAccessKey", True),
        ("IAM:createuser", "iam:CreateUser", True),
        ("s3:Get?bject", "s3:GetObject", True),
        ("s3:Get", "s3:GetObject", False),
        ("*", "ec2:RunInstances", True),
    ],
)
def test_actions(pattern: str, name: str, matches: bool) -> None:
    assert action_matches(pattern, name) is matches


@pytest.mark.parametrize(
    ("pattern", "arn", "matches"),
    [
        ("arn:aws:s3:::lake/*", "arn:aws:s3:::lake/a/b", True),
        ("arn:aws:s3:::lake/*", "arn:aws:s3:::lake", False),
        ("arn:aws:s3:::lake/*", "arn:aws:s3:::lake-2/a", False),
        ("arn:aws:s3:::lake/P/*", "arn:aws:s3:::lake/p/a", False),
        ("arn:aws:s3:::lake/?", "arn:aws:s3:::lake/ab", False),
        ("arn:aws:s3:::lake/a", "arn:aws:s3:::lake/a:b", False),
        ("arn:aws:s3:::lake/*", "arn:aws:s3:::lake/a:b\n", True),
        ("arn:aws:ec2:*:1:volume/*", "arn:aws:ec2:eu-west-1:1:volume/vol-1", True),
        ("arn:aws:ec2:*:volume/*", "arn:aws:ec2:eu-west-1:1:volume/vol-1", False),
        ("arn:aws:s3:::*", "*", False),
        ("*", "*", True),
    ],
)
def test_arns(pattern: str, arn: str, matches: bool) -> None:
    assert arn_matches(pattern, arn) is matches


@pytest.mark.parametrize(
    "statement",
    [
        allow("*", Condition={"DateLessThan": {"aws:CurrentTime": "2030-01-01"}}),
        allow("*", Condition={"ForAnyValue:StringLikeIfExists": {"aws:a": "b"}}),
        allow("*", Condition={"StringEquals": {"aws:several": "b"}}),
        allow("*", Principal="*"),
        allow("*", NotAction="s3:*"),
        allow("*") | {"Effect": "allow"},
        {"Effect": "Allow", "Action": "*"},
    ],
)
def test_what_is_not_known_is_not_guessed(statement: dict[str, Any]) -> None:
    request = Request(action="s3:GetObject", context={"aws:several": ("a", "b")})
    with pytest.raises(UnknownElement):
        decide(request, [policy(statement)])
