"""UpdateFeatures (57), v0-2: raise or lower the level of a feature, as kafka-features does (KIP-584, KIP-1022).

All changes of a request are made, or none, and they are on disk before the answer; ApiVersions announces them from then
on. `broker/features.py` decides. v1 and newer may only ask whether it would work. v0 and v1 name each feature that was
changed. In v0 a downgrade is refused even if the request allows it, as in Apache Kafka.
"""

from __future__ import annotations

from onceflow.broker.access import check_cluster
from onceflow.broker.features import FeatureUpdate, levels_after
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation
from onceflow.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


def handle(node: Node, context: Context, request: UpdateFeaturesRequest) -> Steps:
    try:
        check_cluster(node, context, Operation.ALTER)
        updates = yield from in_steps(request.feature_updates, _update)
        levels = levels_after(node.features.levels, updates)
        if not request.validate_only:
            node.features.apply(levels)
    except ProtocolError as error:
        return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
    except StorageError as error:
        return UpdateFeaturesResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR, error_message=str(error))
    changed = dict.fromkeys(update.feature for update in updates)
    return UpdateFeaturesResponse(results=[UpdatableFeatureResult(feature=name) for name in changed])


def _update(asked: FeatureUpdateKey) -> FeatureUpdate:
    return FeatureUpdate(asked.feature, asked.max_version_level, asked.upgrade_type)
