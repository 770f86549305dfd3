"""UpdateFeatures, key 57, versions 0-2: change the levels of cluster features (KIP-584, KIP-1022).

v1: kinds of upgrade, and trying out. v2: one error for all features. A feature stays at the level
of the release (see `broker.features`): setting it to just that is taken, everything else is refused
with INVALID_UPDATE_VERSION, and nothing is changed either way.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from broker.features import FEATURES
from broker.protocol.api import Api, RequestContext
from broker.protocol.messages import entity

API = Api(key=57, name="UpdateFeatures", versions=(0, 2))

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


def handle(request: Any, context: RequestContext) -> Any:
    """Answer what stands against the updates."""
    updates = request.feature_updates
    names = [update.feature for update in updates]
    message = None
    for update in updates:
        problem = _problem(update)
        if problem is not None:
            message = (
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.max_version_level} for feature {update.feature}. "
                f"{problem}"
            )
            break
    results = [
        entity(
            context.response,
            "UpdatableFeatureResult",
            feature=name,
            error_code=ErrorCode.none,
            error_message=None,
        )
        for name in names
        if message is None and hasattr(context.response, "UpdatableFeatureResult")
    ]
    return entity(
        context.response,
        "UpdateFeaturesResponse",
        error_code=ErrorCode.none if message is None else ErrorCode.invalid_update_version,
        error_message=message,
        results=results,
    )


def _problem(update: Any) -> str | None:
    """Say why a feature cannot have the level that is asked for; None: it has it."""
    level, feature = update.max_version_level, FEATURES.get(update.feature)
    if _kind(update) not in {_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE}:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if feature is None:
        return "Feature not found." if level == 0 else "No node supports this feature."
    if not feature.least <= level <= feature.most:
        return f"Nodes only support versions {feature.least}-{feature.most}"
    if level != feature.level:
        return f"This release has the feature at {feature.level}, and at no other level."
    return None


def _kind(update: Any) -> int:
    if hasattr(update, "allow_downgrade"):  # v0
        return _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    kind: int = update.upgrade_type
    return kind
