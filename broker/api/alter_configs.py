"""AlterConfigs, key 33, versions 0-2: replace all configs of resources; deprecated since Kafka
2.3.

v2: flexible. Configs that are not named go back to their defaults. Resources are those of
`config_changes`.
"""

from typing import Any

from lakehead.broker.api.config_changes import (
    ACCESS,
    Changes,
    Configs,
    Definitions,
    handle_changes,
)
from lakehead.broker.protocol.api import Api
from lakehead.broker.request_context import RequestContext

API = Api(key=33, name="AlterConfigs", versions=(0, 2), is_at_once=True, access=ACCESS)


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response, with a code for each resource, once its new configs are in the
    metadata.
    """
    return await handle_changes(request, context, "AlterConfigsResponse", _changes)


def _changes(resource: Any, present: Configs, definitions: Definitions) -> Changes:
    changes: Changes = dict.fromkeys(present)
    for config in resource.configs:
        changes[config.name] = config.value
    return changes
