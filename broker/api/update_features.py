"""UpdateFeatures, key 57, versions 0-2: change the levels of cluster features (KIP-584, KIP-1022).

v1: kinds of upgrade, and trying out. v2: one error for all features. `metadata.version` may be
raised to what every live node supports, and is never lowered: records of the level may have been
written. Other features stay at the level of the release (see `lakehead.broker.features`): setting
one to just that is taken. Everything else is refused with INVALID_UPDATE_VERSION, and nothing is
changed.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.deadline import Deadline
from lakehead.broker.features import Levels, features, raised
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CLUSTER
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.format.feature_level import METADATA_VERSION
from lakehead.storage.metadata.records import Record
from lakehead.storage.metadata.state import MetadataImage

API = Api(key=57, name="UpdateFeatures", versions=(0, 2), access=(ALTER_CLUSTER,))

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


class _Refused(LakeheadError):
    """An update cannot be made. The message is the client's."""


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response when the levels are in force, or with the reasons against the updates."""
    peers = context.services.lifecycle

    def plan(state: MetadataImage) -> Sequence[Record]:
        records = [
            record for update in request.feature_updates for record in _records(state, update)
        ]
        return () if getattr(request, "validate_only", False) else records

    def _records(state: MetadataImage, update: Any) -> Sequence[Record]:
        try:
            return _change(state, update, peers.levels(), context.services.rng)
        except SettingsError as error:
            raise _Refused(
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.max_version_level} for feature {update.feature}. "
                f"{error}"
            ) from None

    code, message = ErrorCode.none, None
    try:
        context.check(ALTER_CLUSTER)
        async with Deadline.of(request).limit():
            await context.services.metadata.commit_with(plan)
    except _Refused as error:
        code, message = ErrorCode.invalid_update_version, str(error)
    except (LakeheadError, TimeoutError) as error:
        code, message = error_code(error), error_message(error)
    results = [
        entity(
            context.response,
            "UpdatableFeatureResult",
            feature=update.feature,
            error_code=ErrorCode.none,
            error_message=None,
        )
        for update in request.feature_updates
        if code is ErrorCode.none and hasattr(context.response, "UpdatableFeatureResult")
    ]
    return entity(
        context.response,
        "UpdateFeaturesResponse",
        error_code=code,
        error_message=message,
        results=results,
    )


def _change(
    state: MetadataImage, update: Any, heard: Mapping[int, Levels], rng: random.Random
) -> Sequence[Record]:
    """Return the records of one update. Raises SettingsError for one that cannot be made."""
    level, feature = update.max_version_level, features(state).get(update.feature)
    kind = _kind(update)
    if kind not in {_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE}:
        raise SettingsError("The controller does not support the given upgrade type.")
    if level < 0:
        raise SettingsError("A feature version cannot be less than 0.")
    if feature is None:
        raise SettingsError(
            "Feature not found." if level == 0 else "No node supports this feature."
        )
    if not feature.least <= level <= feature.most:
        raise SettingsError(f"Nodes only support versions {feature.least}-{feature.most}")
    if level == feature.level:
        return ()
    if update.feature != METADATA_VERSION:
        raise SettingsError(
            f"This release has the feature at {feature.level}, and at no other level."
        )
    if level < feature.level:
        raise SettingsError(
            "Can't downgrade the version of this feature: it says what the metadata may hold."
        )
    if kind != _UPGRADE:
        raise SettingsError("Can't downgrade to a newer version.")
    return raised(state, level, heard, rng)


def _kind(update: Any) -> int:
    if hasattr(update, "allow_downgrade"):  # v0
        return _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
    kind: int = update.upgrade_type
    return kind
