"""ApiVersions (key 18), versions 0 to 4.

1 throttle time · 3 compact, client software, features · 4 features whose lowest version is 0.

The response to a version that is not served is of version 0, with error 35 and the whole list, so
that the client can retry with a version of it (KIP-511). The response header is always version 0,
since the client does not know more yet. Features are those of `lakehead.broker.features`.
"""

from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.features import features
from lakehead.broker.protocol.api import Api, schema
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext

API = Api(
    key=18,
    name="ApiVersions",
    versions=(0, 4),
    open_to_all="The first request of a connection, before a client proves its name.",
)

SOFTWARE_MAX = 256
"""Characters that are kept of the name, and of the version, of a client's software."""


def handle(request: Any, context: RequestContext) -> Any:
    """Return what is served."""
    is_served = API.serves(context.version)
    module = context.response if is_served else schema(API.key, 0).response_module
    keys = [
        entity(
            module,
            "ApiVersion",
            api_key=api.key,
            min_version=api.versions[0] if api.advertised_from is None else api.advertised_from,
            max_version=api.versions[1],
        )
        for api in context.services.apis
        if not api.is_internal
    ]
    error = _error(request, context) if is_served else ErrorCode.unsupported_version
    if error is ErrorCode.none and context.version >= 3 and context.connection is not None:
        context.connection.software_name = request.client_software_name[:SOFTWARE_MAX]
        context.connection.software_version = request.client_software_version[:SOFTWARE_MAX]
    return entity(
        module, "ApiVersionsResponse", error_code=error, api_keys=keys, **_features(module, context)
    )


def _features(module: ModuleType, context: RequestContext) -> dict[str, Any]:
    """Return the fields about features; before version 4 those with a lowest level of 0 are left
    out, as older clients refuse them (KIP-1022).
    """
    if not hasattr(module, "SupportedFeatureKey"):
        return {}
    state = context.services.state
    known = features(state)
    shown = {n: f for n, f in known.items() if f.least > 0 or context.version >= 4}
    supported = [
        entity(
            module,
            "SupportedFeatureKey",
            name=name,
            min_version=feature.least,
            max_version=feature.most,
        )
        for name, feature in shown.items()
    ]
    finalized = [
        entity(
            module,
            "FinalizedFeatureKey",
            name=name,
            min_version_level=feature.level,
            max_version_level=feature.level,
        )
        for name, feature in known.items()
        if feature.level > 0
    ]
    return {
        "supported_features": supported,
        "finalized_features": finalized,
        "finalized_features_epoch": state.features_epoch,
    }


def _error(request: Any, context: RequestContext) -> ErrorCode:
    """Refuse software names that break KIP-511's rule, as Kafka does."""
    if context.version < 3:
        return ErrorCode.none
    words = (request.client_software_name, request.client_software_version)
    return ErrorCode.none if all(map(_is_word, words)) else ErrorCode.invalid_request


def _is_word(text: str) -> bool:
    inner = text.replace("-", "").replace(".", "")
    return inner.isascii() and inner.isalnum() and text[0] not in "-." and text[-1] not in "-."
