"""What always holds of the evaluation of IAM policies, whatever they say."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.terraform.policy_evaluation import Decision, Policy, Request, decide
from tests.terraform.test_policy_evaluation import deny, policy

ALLOWED, IMPLICIT, EXPLICIT = Decision

ACTIONS = st.sampled_from(["s3:GetObject", "s3:PutObject", "s3:ListBucket", "ec2:AttachVolume"])
ACTION_PATTERNS = st.sampled_from(["*", "s3:*", "s3:?etObject", "S3:PutObject", "ec2:*"])
ARNS = st.sampled_from(["arn:aws:s3:::a/x", "arn:aws:s3:::a/y/z", "arn:aws:s3:::a", "*"])
ARN_PATTERNS = st.sampled_from(["*", "arn:aws:s3:::a/*", "arn:aws:s3:::a", "arn:aws:s3:::?/y*"])
CONDITIONS = st.dictionaries(
    st.sampled_from(["StringEquals", "StringNotLike", "StringLikeIfExists", "Bool"]),
    st.dictionaries(st.sampled_from(["aws:a", "aws:b"]), st.sampled_from(["1", "true", "*"])),
)
STATEMENTS = st.builds(
    lambda effect, element, action, resource, condition: {
        "Effect": effect,
        element: action,
        "Resource": resource,
        "Condition": condition,
    },
    st.sampled_from(["Allow", "Deny"]),
    st.sampled_from(["Action", "NotAction"]),
    st.lists(ACTION_PATTERNS, min_size=1, max_size=2),
    st.lists(ARN_PATTERNS, min_size=1, max_size=2),
    CONDITIONS,
)
POLICIES = st.lists(STATEMENTS, max_size=4).map(lambda held: policy(*held))
REQUESTS = st.builds(
    lambda action, resource, context: Request(action=action, resource=resource, context=context),
    ACTIONS,
    ARNS,
    st.dictionaries(st.sampled_from(["aws:a", "AWS:B"]), st.sampled_from(["1", "true", "x"])),
)


@settings(max_examples=50)
@given(REQUESTS, st.lists(POLICIES, max_size=3), STATEMENTS)
def test_a_further_allow_takes_nothing_and_a_further_deny_gives_nothing(
    request: Request, held: list[Policy], statement: dict[str, Any]
) -> None:
    before = decide(request, held)
    after = decide(request, [*held, policy(statement)])
    if statement["Effect"] == "Allow":
        assert before is after or (before, after) == (IMPLICIT, ALLOWED)
    else:
        assert before is after or after is EXPLICIT


@settings(max_examples=50)
@given(REQUESTS, st.lists(POLICIES, max_size=3))
def test_a_deny_of_everything_wins_wherever_it_stands(request: Request, held: list[Policy]) -> None:
    nothing = policy(deny("*"))
    assert decide(request, [nothing, *held]) is decide(request, [*held, nothing]) is EXPLICIT
    assert decide(request, held, policy(deny("*", Principal="*"))) is EXPLICIT
    assert decide(request, []) is IMPLICIT


@settings(max_examples=50)
@given(REQUESTS, st.lists(POLICIES, max_size=3), st.randoms(use_true_random=False))
def test_order_and_division_into_policies_decide_nothing(
    request: Request, held: list[Policy], rng: Any
) -> None:
    together = [statement for one in held for statement in one["Statement"]]
    rng.shuffle(together)
    assert decide(request, held) is decide(request, [policy(*together)])


@given(REQUESTS, STATEMENTS)
def test_a_further_condition_only_narrows(request: Request, statement: dict[str, Any]) -> None:
    effect = Decision.ALLOWED if statement["Effect"] == "Allow" else Decision.EXPLICIT_DENY
    narrower = statement | {"Condition": statement["Condition"] | {"Null": {"aws:a": "false"}}}
    if decide(request, [policy(narrower)]) is effect:
        assert decide(request, [policy(statement)]) is effect
