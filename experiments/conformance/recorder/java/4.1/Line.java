package org.apache.kafka.controller;

import java.util.Map;
import java.util.Map.Entry;
import java.util.Set;
import java.util.function.IntPredicate;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.FeatureUpdate.UpgradeType;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.CreateTopicsRequestData;
import org.apache.kafka.common.message.CreateTopicsResponseData;
import org.apache.kafka.common.requests.ApiError;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.timeline.SnapshotRegistry;

/** What differs between lines of releases: 4.1.0 to 4.2.2. */
final class Line {
    private Line() { }

    static SnapshotRegistry registry() {
        return new SnapshotRegistry(new LogContext());
    }

    static PartitionChangeBuilder changes(
        PartitionRegistration partition, Uuid topic, IntPredicate isAcceptable, int minIsr, boolean elr
    ) {
        return new PartitionChangeBuilder(partition, topic, 0, isAcceptable, MetadataVersion.IBP_4_0_IV1, minIsr)
            .setEligibleLeaderReplicasEnabled(elr);
    }

    static ControllerResult<CreateTopicsResponseData> createTopics(
        ReplicationControlManager replication, ControllerRequestContext context, CreateTopicsRequestData request
    ) {
        return replication.createTopics(context, request, Set.of());
    }

    static ControllerResult<Map<ConfigResource, ApiError>> alterConfigs(
        ConfigurationControlManager configs, Map<ConfigResource, Map<String, Entry<OpType, String>>> changes
    ) {
        return configs.incrementalAlterConfigs(changes, false);
    }

    static ControllerResult<ApiError> updateFeatures(
        ConfigurationControlManager configs, Map<String, Short> levels, Map<String, UpgradeType> types
    ) {
        return configs.updateFeatures(levels, types, false, 0);
    }
}
