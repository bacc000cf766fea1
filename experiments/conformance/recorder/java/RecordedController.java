package org.apache.kafka.controller;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Random;
import java.util.TreeMap;
import java.util.function.ObjIntConsumer;
import java.util.function.Supplier;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.message.AlterPartitionRequestData;
import org.apache.kafka.common.message.AlterPartitionResponseData;
import org.apache.kafka.common.message.BrokerHeartbeatRequestData;
import org.apache.kafka.common.message.CreateTopicsRequestData.CreatableReplicaAssignment;
import org.apache.kafka.common.message.CreateTopicsRequestData.CreatableTopic;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.metadata.FeatureLevelRecord;
import org.apache.kafka.common.metadata.RegisterBrokerRecord;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.ApiError;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.BrokerHeartbeatReply;
import org.apache.kafka.metadata.KafkaConfigSchema;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.metadata.placement.StripedReplicaPlacer;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.EligibleLeaderReplicasVersion;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.config.ConfigSynonym;
import org.apache.kafka.timeline.SnapshotRegistry;

/** The managers of a controller, each of whose records is replayed at once, and the steps that were recorded. */
class RecordedController {
    static final String MIN_ISR = "min.insync.replicas";
    static final String UNCLEAN = "unclean.leader.election.enable";
    private static final long SESSION_TIMEOUT_NS = 3600L * 1_000_000_000L;
    private static final long FIRST_EPOCH = 100;

    final Map<Integer, Long> epochs = new TreeMap<>();
    final List<Object> steps = new ArrayList<>();
    final Random random;
    final boolean elr;
    final FeatureControlManager features;
    final ConfigurationControlManager configs;
    final ClusterControlManager cluster;
    ReplicationControlManager replication;
    private long nextEpoch = FIRST_EPOCH;
    private String fault;

    RecordedController(Random random) {
        this.random = random;
        elr = random.nextDouble() < 0.85;
        SnapshotRegistry registry = Line.registry();
        features = new FeatureControlManager.Builder().setSnapshotRegistry(registry).setQuorumFeatures(
            new QuorumFeatures(0, QuorumFeatures.defaultSupportedFeatureMap(true), List.of(0))).build();
        level(MetadataVersion.FEATURE_NAME, MetadataVersion.latestProduction().featureLevel());
        level(EligibleLeaderReplicasVersion.FEATURE_NAME, (short) (elr ? 1 : 0));
        configs = new ConfigurationControlManager.Builder().setSnapshotRegistry(registry)
            .setKafkaConfigSchema(schema()).setFeatureControl(features).build();
        cluster = new ClusterControlManager.Builder().setSnapshotRegistry(registry)
            .setSessionTimeoutNs(SESSION_TIMEOUT_NS).setReplicaPlacer(new StripedReplicaPlacer(new Random(1)))
            .setFeatureControlManager(features)
            .setBrokerShutdownHandler((broker, clean, out) -> replication.handleBrokerShutdown(broker, clean, out))
            .build();
        replication = new ReplicationControlManager.Builder().setSnapshotRegistry(registry)
            .setMaxElectionsPerImbalance(Integer.MAX_VALUE).setConfigurationControl(configs).setClusterControl(cluster)
            .setCreateTopicPolicy(Optional.empty()).setFeatureControl(features).build();
        cluster.activate();
    }

    private void level(String feature, short level) {
        features.replay(new FeatureLevelRecord().setName(feature).setFeatureLevel(level));
    }

    private static KafkaConfigSchema schema() {
        ConfigDef definitions = new ConfigDef()
            .define(UNCLEAN, ConfigDef.Type.BOOLEAN, "false", ConfigDef.Importance.HIGH, "")
            .define(MIN_ISR, ConfigDef.Type.INT, "1", ConfigDef.Importance.HIGH, "");
        return new KafkaConfigSchema(
            Map.of(ConfigResource.Type.BROKER, definitions, ConfigResource.Type.TOPIC, definitions),
            Map.of(UNCLEAN, List.of(new ConfigSynonym(UNCLEAN)), MIN_ISR, List.of(new ConfigSynonym(MIN_ISR))));
    }

    /** Replays records where the controller does: in each manager that has a method for a record. */
    final <T> T replay(ControllerResult<T> result) {
        for (Object manager : List.of(cluster, features, configs, replication)) {
            for (ApiMessageAndVersion record : result.records()) replay(manager, record.message());
        }
        return result.response();
    }

    final void replay(List<ApiMessageAndVersion> records) {
        replay(ControllerResult.of(records, null));
    }

    private static void replay(Object manager, Object message) {
        for (Method method : manager.getClass().getMethods()) {
            Class<?>[] types = method.getParameterTypes();
            if (!method.getName().equals("replay") || !types[0].isInstance(message)) continue;
            try {
                Object[] arguments = types.length == 1 ? new Object[] {message} : new Object[] {message, 0L};
                method.invoke(manager, arguments);
            } catch (InvocationTargetException | IllegalAccessException error) {
                throw new IllegalStateException("replay of " + message, error);
            }
        }
    }

    static ControllerRequestContext context(ApiKeys key) {
        RequestHeaderData header = new RequestHeaderData();
        header.setRequestApiKey(key.id).setRequestApiVersion(key.latestVersion());
        return new ControllerRequestContext(header, KafkaPrincipal.ANONYMOUS, OptionalLong.empty(), ignored -> { });
    }

    /** The answer, or the name of the error that is thrown instead of one. */
    static Object answer(Supplier<Object> request) {
        try {
            return request.get();
        } catch (ApiException error) {
            return Errors.forException(error).name();
        }
    }

    /** Random events. Any other exception than an answer ends them, since a controller that meets one resigns. */
    final void events(int brokers, ObjIntConsumer<Double> event) {
        int count = 20 + random.nextInt(30);
        for (int i = 0; i < count && fault == null; i++) {
            try {
                event.accept(random.nextDouble(), random.nextInt(brokers));
            } catch (RuntimeException error) {
                fault = error.getClass().getSimpleName() + " in " + error.getStackTrace()[0].getMethodName();
            }
        }
    }

    final Map<String, Object> withFault(Map<String, Object> row) {
        if (fault != null) row.put("fault", fault);
        return row;
    }

    static String name(short code) {
        return Errors.forCode(code).name();
    }

    static String name(ApiError error) {
        return error.error().name();
    }

    final boolean fenced(int broker) {
        return !epochs.containsKey(broker) || cluster.brokerRegistrations().get(broker).fenced();
    }

    /** A new incarnation; the shutdown of the one before it is handled first, as registerBroker does. */
    final Map<String, Object> register(int broker, boolean unclean) {
        List<ApiMessageAndVersion> records = new ArrayList<>();
        replication.handleBrokerShutdown(broker, !unclean, records);
        long epoch = nextEpoch++;
        RegisterBrokerRecord registration = new RegisterBrokerRecord().setBrokerEpoch(epoch).setBrokerId(broker)
            .setLogDirs(List.of(new Uuid(1, 1000 + broker)));
        registration.endPoints().add(new RegisterBrokerRecord.BrokerEndpoint().setName("PLAINTEXT")
            .setSecurityProtocol(SecurityProtocol.PLAINTEXT.id).setHost("localhost").setPort(9092 + broker));
        records.add(new ApiMessageAndVersion(registration, (short) 3));
        replay(records);
        epochs.put(broker, epoch);
        return Json.object(
            "type", "register_broker", "broker_id", broker, "broker_epoch", epoch, "unclean_shutdown", unclean);
    }

    final Map<String, Object> fence(int broker) {
        List<ApiMessageAndVersion> records = new ArrayList<>();
        replication.handleBrokerFenced(broker, records);
        replay(records);
        cluster.heartbeatManager().fence(broker);
        return Json.object("type", "fence", "broker_id", broker);
    }

    /** A heartbeat {@code unfence}, {@code want_fence} or {@code controlled_shutdown}. */
    final Object heartbeat(String type, int broker) {
        return answer(() -> {
            BrokerHeartbeatReply reply = replay(replication.processBrokerHeartbeat(new BrokerHeartbeatRequestData()
                .setBrokerId(broker).setBrokerEpoch(epochs.get(broker)).setCurrentMetadataOffset(1)
                .setWantFence(type.equals("want_fence")).setWantShutDown(type.equals("controlled_shutdown")), 0));
            return Json.object("fenced", reply.isFenced(), "in_controlled_shutdown", reply.inControlledShutdown(),
                "should_shut_down", reply.shouldShutDown());
        });
    }

    static Map<String, Object> heartbeatEvent(String type, int broker) {
        return Json.object("type", type, "broker_id", broker);
    }

    static CreatableTopic creatable(String name, List<List<Integer>> assignments) {
        CreatableTopic topic = new CreatableTopic().setName(name).setNumPartitions(-1).setReplicationFactor((short) -1);
        for (List<Integer> replicas : assignments) {
            topic.assignments().add(new CreatableReplicaAssignment()
                .setPartitionIndex(topic.assignments().size()).setBrokerIds(replicas));
        }
        return topic;
    }

    /** A random proposal of a partition's leader or, rarely, of another replica; null where that never registered. */
    final Map<String, Object> proposal(PartitionRegistration partition) {
        int[] replicas = partition.replicas;
        int leader = random.nextDouble() < 0.93 ? partition.leader : replicas[random.nextInt(replicas.length)];
        if (leader < 0) leader = replicas[random.nextInt(replicas.length)];
        if (!epochs.containsKey(leader)) return null;
        List<Integer> isr = Recorder.some(random, Recorder.list(replicas), 0.65);
        if (random.nextDouble() < 0.9 && !isr.contains(leader)) isr.add(0, leader);
        if (random.nextDouble() < 0.05) isr.add(9);
        int leaderEpoch = partition.leaderEpoch + offset(0.06);
        int partitionEpoch = partition.partitionEpoch + offset(0.08);
        int recovery = random.nextDouble() < 0.12 ? 1 : 0;
        long epoch = epochs.get(leader) - (random.nextDouble() < 0.05 ? 1 : 0);
        List<Object> members = new ArrayList<>();
        for (int broker : isr) {
            long member = random.nextDouble() < 0.06 ? -1
                : epochs.getOrDefault(broker, 5L) - (random.nextDouble() < 0.05 ? 1 : 0);
            members.add(Json.object("broker_id", broker, "broker_epoch", member));
        }
        return Json.object("type", "alter_partition", "broker_id", leader, "broker_epoch", epoch,
            "leader_epoch", leaderEpoch, "partition_epoch", partitionEpoch, "leader_recovery_state", recovery,
            "new_isr", members);
    }

    private int offset(double probability) {
        if (random.nextDouble() >= probability) return 0;
        return random.nextBoolean() ? 1 : -1;
    }

    /** The answer to a proposal for a partition of a topic. */
    final Object alter(Uuid topic, int index, Map<String, Object> proposal) {
        List<AlterPartitionRequestData.BrokerState> members = new ArrayList<>();
        for (Object member : (List<?>) proposal.get("new_isr")) {
            Map<?, ?> state = (Map<?, ?>) member;
            members.add(new AlterPartitionRequestData.BrokerState().setBrokerId((Integer) state.get("broker_id"))
                .setBrokerEpoch((Long) state.get("broker_epoch")));
        }
        AlterPartitionRequestData.PartitionData partition = new AlterPartitionRequestData.PartitionData()
            .setPartitionIndex(index).setPartitionEpoch((Integer) proposal.get("partition_epoch"))
            .setLeaderEpoch((Integer) proposal.get("leader_epoch"))
            .setLeaderRecoveryState(((Integer) proposal.get("leader_recovery_state")).byteValue())
            .setNewIsrWithEpochs(members);
        AlterPartitionRequestData request = new AlterPartitionRequestData()
            .setBrokerId((Integer) proposal.get("broker_id")).setBrokerEpoch((Long) proposal.get("broker_epoch"))
            .setTopics(List.of(new AlterPartitionRequestData.TopicData().setTopicId(topic)
                .setPartitions(List.of(partition))));
        return answer(() -> {
            AlterPartitionResponseData response =
                replay(replication.alterPartition(context(ApiKeys.ALTER_PARTITION), request));
            return name(response.topics().get(0).partitions().get(0).errorCode());
        });
    }
}
