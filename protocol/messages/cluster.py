"""The cluster as a whole: its brokers, and its feature levels (requirements K2-K11)."""

from __future__ import annotations

from enum import Enum

from protocol.ids import NO_LEADER
from protocol.messages.admin import AdminRequest, AdminResponse, Result
from protocol.messages.base import Int16, Int32, Int64, Message
from protocol.values import direct


class UnregisterBrokerRequest(AdminRequest):
    """Removes the registration of a broker that will not return; its replicas stay assigned."""

    broker_id: Int32


class UnregisterBrokerResponse(AdminResponse):
    """Confirms that the registration is removed."""


class UnregisterControllerRequest(AdminRequest):
    """Removes the registration of a controller that will not return (KIP-1312)."""

    controller_id: Int32


class UnregisterControllerResponse(AdminResponse):
    """Confirms that the registration is removed."""


class DescribeClusterRequest(AdminRequest, read_only=True):
    """Requests the registered brokers and the active controller."""


class DescribedBroker(Message):
    """A registered broker."""

    broker_id: Int32
    broker_epoch: Int64
    rack: str | None = None
    is_fenced: bool = False
    in_controlled_shutdown: bool = False


class DescribeClusterResponse(AdminResponse):
    """All registered brokers by id, and the active controller (-1: unknown)."""

    brokers: tuple[DescribedBroker, ...] = ()
    controller_id: Int32 = NO_LEADER


@direct
class UpgradeType(Enum):
    """What a feature update may do: raise the level; lower it without loss of metadata; lower it regardless of loss."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(Message):
    """A new finalized level of a feature."""

    feature: str
    max_version_level: Int16
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


class UpdateFeaturesRequest(AdminRequest):
    """Changes finalized feature levels, all of them or none (KIP-584)."""

    feature_updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


class FeatureResult(Result):
    """The result for one feature."""

    feature: str


class UpdateFeaturesResponse(AdminResponse):
    """One result per feature."""

    features: tuple[FeatureResult, ...] = ()


class DescribeFeaturesRequest(AdminRequest, read_only=True):
    """Requests the finalized and supported levels of all features."""


class DescribedFeature(Message):
    """A feature: the levels that this release supports, and the finalized one."""

    name: str
    min_version_level: Int16
    max_version_level: Int16
    finalized_version_level: Int16


class DescribeFeaturesResponse(AdminResponse):
    """All features."""

    features: tuple[DescribedFeature, ...] = ()
