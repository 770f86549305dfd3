"""AlterConfigs, key 33, versions 0-2: replace all configs of topics; deprecated since Kafka 2.3.

v2: flexible. Configs that are not named go back to their defaults. Configs of brokers are settings
that are given when a broker starts: altering them is refused with INVALID_REQUEST.
"""

from typing import Any

from broker.api.config_changes import answer_changes
from broker.configs import check_topic_configs
from broker.protocol.api import Api, RequestContext
from storage.metadata.state import TopicState

API = Api(key=33, name="AlterConfigs", versions=(0, 2))


async def handle(request: Any, context: RequestContext) -> Any:
    """Answer for each resource, once its new configs are in the metadata."""
    return await answer_changes(request, context, "AlterConfigsResponse", _changes)


def _changes(resource: Any, topic: TopicState) -> dict[str, str | None]:
    given = {config.name: config.value for config in resource.configs}
    check_topic_configs(given)
    removed: dict[str, str | None] = dict.fromkeys(topic.configs)
    return removed | given
