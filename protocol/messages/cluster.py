"""The cluster as a whole: its brokers, and its feature levels (requirements K2-K11)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

from protocol.ids import NO_LEADER
from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.messages.base import Int16, Int32, Int64, Message


class UnregisterBrokerRequest(AdminRequest):
    """Forgets a broker that is not coming back; its replicas stay assigned."""

    broker_id: Int32


class UnregisterBrokerResponse(AdminResponse):
    pass


class DescribeClusterRequest(AdminRequest):
    READ_ONLY: ClassVar[bool] = True


class DescribedBroker(Message):
    broker_id: Int32
    broker_epoch: Int64
    rack: str | None = None
    is_fenced: bool = False
    in_controlled_shutdown: bool = False


class DescribeClusterResponse(AdminResponse):
    """All registered brokers, in order."""

    brokers: tuple[DescribedBroker, ...] = ()
    controller_id: Int32 = NO_LEADER


class UpgradeType(Enum):
    """What a feature update may do: raise the level; lower it if nothing is lost by it; lower it whatever is lost."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(Message):
    feature: str
    max_version_level: Int16
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


class UpdateFeaturesRequest(AdminRequest):
    """Changes finalized feature levels, all of them or none."""

    feature_updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


class FeatureResult(Result):
    feature: str


class UpdateFeaturesResponse(AdminResponse):
    features: tuple[FeatureResult, ...] = ()

    def parts(self) -> Sequence[Result]:
        return self.features


class DescribeFeaturesRequest(AdminRequest):
    READ_ONLY: ClassVar[bool] = True


class DescribedFeature(Message):
    name: str
    min_version_level: Int16
    max_version_level: Int16
    finalized_version_level: Int16


class DescribeFeaturesResponse(AdminResponse):
    features: tuple[DescribedFeature, ...] = ()
