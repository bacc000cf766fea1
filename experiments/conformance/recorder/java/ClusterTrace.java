package org.apache.kafka.controller;

import java.util.AbstractMap.SimpleEntry;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.FeatureUpdate.UpgradeType;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData.ReassignablePartition;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData.ReassignableTopic;
import org.apache.kafka.common.message.CreatePartitionsRequestData.CreatePartitionsAssignment;
import org.apache.kafka.common.message.CreatePartitionsRequestData.CreatePartitionsTopic;
import org.apache.kafka.common.message.CreateTopicsRequestData;
import org.apache.kafka.common.message.CreateTopicsRequestData.CreatableTopic;
import org.apache.kafka.common.message.CreateTopicsRequestData.CreatableTopicConfig;
import org.apache.kafka.common.message.ElectLeadersRequestData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.EligibleLeaderReplicasVersion;

/**
 * Random events on a controller with up to three topics: they are created, grow, are deleted and come back; configs and
 * the feature level of the ELR change; brokers register with and without a clean shutdown, and are unregistered. A step
 * has the states of all partitions that it changed, null for one that is gone.
 */
final class ClusterTrace extends RecordedController {
    private static final List<String> TOPICS = List.of("a", "b", "c");
    private final int brokers;
    private final Map<String, Uuid> ids = new TreeMap<>();
    private Map<String, Object> seen = new TreeMap<>();

    ClusterTrace(Random random) {
        super(random);
        brokers = 3 + random.nextInt(3);
    }

    Map<String, Object> row() {
        for (int broker = 0; broker < brokers; broker++) {
            step(register(broker, true), "NONE");
            beat("unfence", broker);
        }
        create("a");
        events(brokers, this::event);
        return withFault(Json.object("elr_enabled", elr, "steps", steps));
    }

    private void event(double chosen, int broker) {
        boolean registered = epochs.containsKey(broker);
        boolean fenced = fenced(broker);
        if (chosen < 0.14) {
            if (!fenced) step(fence(broker), "NONE");
        } else if (chosen < 0.30) {
            if (registered && fenced) beat("unfence", broker);
        } else if (chosen < 0.42) {
            if (fenced) step(register(broker, random.nextBoolean() || !registered), "NONE");
        } else if (chosen < 0.60) {
            alter();
        } else if (chosen < 0.65) {
            elect();
        } else if (chosen < 0.69) {
            if (!fenced) beat(random.nextBoolean() ? "controlled_shutdown" : "want_fence", broker);
        } else if (chosen < 0.72) {
            unregister(broker);
        } else if (chosen < 0.77) {
            create(TOPICS.get(random.nextInt(TOPICS.size())));
        } else if (chosen < 0.79) {
            delete(TOPICS.get(random.nextInt(TOPICS.size())));
        } else if (chosen < 0.81) {
            grow();
        } else if (chosen < 0.89) {
            configure();
        } else if (chosen < 0.91) {
            updateFeature();
        } else {
            reassign();
        }
    }

    private void step(Map<String, Object> event, Object result) {
        Map<String, Object> now = new TreeMap<>();
        ids.forEach((name, id) -> {
            for (int index = 0; partition(id, index) != null; index++) {
                now.put(name + "-" + index, Recorder.state(partition(id, index)));
            }
        });
        Map<String, Object> changed = new TreeMap<>();
        now.forEach((name, state) -> {
            if (!Json.text(state).equals(Json.text(seen.get(name)))) changed.put(name, state);
        });
        seen.keySet().forEach(name -> {
            if (!now.containsKey(name)) changed.put(name, null);
        });
        seen = now;
        steps.add(Json.object("event", event, "result", result, "partitions", changed));
    }

    private PartitionRegistration partition(Uuid topic, int index) {
        return replication.getPartition(topic, index);
    }

    private void beat(String type, int broker) {
        step(heartbeatEvent(type, broker), heartbeat(type, broker));
    }

    private void unregister(int broker) {
        Object result = answer(() -> {
            replay(replication.unregisterBroker(broker));
            epochs.remove(broker);
            return "NONE";
        });
        step(Json.object("type", "unregister_broker", "broker_id", broker), result);
    }

    /** A random replica list; {@code factor} 0: of any length. */
    private List<Integer> replicas(int factor) {
        List<Integer> all = new ArrayList<>(epochs.keySet());
        Collections.shuffle(all, random);
        return all.subList(0, Math.min(all.size(), factor > 0 ? factor : 1 + random.nextInt(4)));
    }

    private void create(String name) {
        List<List<Integer>> assignments = new ArrayList<>(List.of(replicas(0)));
        int partitions = 1 + random.nextInt(3);
        while (assignments.size() < partitions) assignments.add(replicas(assignments.get(0).size()));
        String minIsr = random.nextDouble() < 0.7 ? String.valueOf(1 + random.nextInt(3)) : null;
        CreatableTopic topic = creatable(name, assignments);
        if (minIsr != null) topic.configs().add(new CreatableTopicConfig().setName(MIN_ISR).setValue(minIsr));
        CreateTopicsRequestData request = new CreateTopicsRequestData();
        request.topics().add(topic);
        Object result = answer(() -> {
            var created = replay(Line.createTopics(replication, context(ApiKeys.CREATE_TOPICS), request))
                .topics().find(name);
            if (created.errorCode() == 0) ids.put(name, created.topicId());
            return name(created.errorCode());
        });
        step(Json.object("type", "create_topic", "name", name, "assignments", assignments,
            "min_insync_replicas", minIsr == null ? null : Integer.valueOf(minIsr)), result);
    }

    private void delete(String name) {
        if (!ids.containsKey(name)) return;
        Uuid id = ids.get(name);
        Object result = answer(() ->
            name(replay(replication.deleteTopics(context(ApiKeys.DELETE_TOPICS), List.of(id))).get(id)));
        if (result.equals("NONE")) ids.remove(name);
        step(Json.object("type", "delete_topic", "name", name), result);
    }

    private String anyTopic() {
        List<String> names = new ArrayList<>(ids.keySet());
        return names.isEmpty() ? null : names.get(random.nextInt(names.size()));
    }

    private int partitions(String name) {
        int count = 0;
        while (partition(ids.get(name), count) != null) count++;
        return count;
    }

    /** Where partitions have different numbers of replicas, the one that a hash map has first decides: not recorded. */
    private void grow() {
        String name = anyTopic();
        if (name == null) return;
        int present = partitions(name);
        int first = partition(ids.get(name), 0).replicas.length;
        for (int index = 1; index < present; index++) {
            if (partition(ids.get(name), index).replicas.length != first) return;
        }
        int factor = random.nextDouble() < 0.8 ? first : 0;
        List<List<Integer>> added = List.of(replicas(factor));
        CreatePartitionsTopic topic = new CreatePartitionsTopic().setName(name).setCount(present + 1)
            .setAssignments(List.of(new CreatePartitionsAssignment().setBrokerIds(added.get(0))));
        Object result = answer(() -> name(replay(replication.createPartitions(
            context(ApiKeys.CREATE_PARTITIONS), List.of(topic))).get(0).errorCode()));
        step(Json.object("type", "create_partitions", "name", name, "present", present, "assignments", added), result);
    }

    /** A config of a topic or, with topic null, of the whole cluster; elections that it allows are held at once. */
    private void configure() {
        String name = random.nextDouble() < 0.65 ? anyTopic() : null;
        boolean unclean = random.nextDouble() < 0.25;
        String value = random.nextDouble() < 0.25 ? null
            : unclean ? String.valueOf(random.nextBoolean()) : String.valueOf(1 + random.nextInt(3));
        String config = unclean ? UNCLEAN : MIN_ISR;
        ConfigResource resource = new ConfigResource(
            name == null ? ConfigResource.Type.BROKER : ConfigResource.Type.TOPIC,
            Objects.requireNonNullElse(name, ""));
        Map<String, Map.Entry<OpType, String>> change =
            Map.of(config, new SimpleEntry<>(value == null ? OpType.DELETE : OpType.SET, value));
        Object result = answer(() -> {
            String error = name(replay(Line.alterConfigs(configs, Map.of(resource, change))).get(resource));
            indexClearedElrs();
            if (unclean) replay(replication.maybeElectUncleanLeaders());
            return error;
        });
        step(Json.object("type", "alter_config", "topic", name, "name", config, "value", value), result);
    }

    /**
     * A ClearElrRecord empties ELRs, but not the index of brokers in ELRs; a controller that has loaded a snapshot has
     * it right. With the stale index a broker's changes are recorded twice, and end in an exception once the topic is
     * gone.
     */
    private void indexClearedElrs() {
        ids.forEach((name, id) -> {
            for (int index = 0; partition(id, index) != null; index++) {
                int[] present = partition(id, index).elr;
                Map<?, ?> before = (Map<?, ?>) seen.get(name + "-" + index);
                if (present.length == 0) {
                    replication.brokersToElrs().update(id, index, (int[]) before.get("elr"), present);
                }
            }
        });
    }

    /** The ELR goes only while no partition needs it: isray lowers metadata.version, whose records have none then. */
    private void updateFeature() {
        String feature = EligibleLeaderReplicasVersion.FEATURE_NAME;
        short level = (short) random.nextInt(2);
        if (level == 0 && seen.keySet().stream().anyMatch(this::needsElr)) return;
        boolean raised = level > 0 || random.nextDouble() < 0.1;
        UpgradeType type = raised ? UpgradeType.UPGRADE : UpgradeType.SAFE_DOWNGRADE;
        Object result = answer(() ->
            name(replay(Line.updateFeatures(configs, Map.of(feature, level), Map.of(feature, type)))));
        step(Json.object("type", "update_feature", "feature", feature, "level", (int) level, "upgrade_type", type),
            result);
    }

    private boolean needsElr(String name) {
        String[] parts = name.split("-");
        PartitionRegistration state = partition(ids.get(parts[0]), Integer.parseInt(parts[1]));
        return state.isr.length == 0 || state.elr.length + state.lastKnownElr.length > 0;
    }

    private void alter() {
        String name = anyTopic();
        if (name == null) return;
        int index = random.nextInt(partitions(name));
        Map<String, Object> proposal = proposal(partition(ids.get(name), index));
        if (proposal == null) return;
        proposal.put("topic", name);
        proposal.put("partition", index);
        step(proposal, alter(ids.get(name), index, proposal));
    }

    /** An election of one partition, or of all. */
    private void elect() {
        boolean preferred = random.nextDouble() < 0.6;
        String name = random.nextBoolean() ? anyTopic() : null;
        ElectLeadersRequestData request = new ElectLeadersRequestData().setElectionType((byte) (preferred ? 0 : 1));
        List<Object> named = null;
        if (name == null) {
            request.setTopicPartitions(null);
        } else {
            int index = random.nextInt(partitions(name));
            named = List.of(List.of(name, index));
            request.topicPartitions().add(
                new ElectLeadersRequestData.TopicPartitions().setTopic(name).setPartitions(List.of(index)));
        }
        Map<String, Object> results = new TreeMap<>();
        replay(replication.electLeaders(request)).replicaElectionResults().forEach(topic ->
            topic.partitionResult().forEach(result ->
                results.put(topic.topic() + "-" + result.partitionId(), name(result.errorCode()))));
        step(Json.object("type", "elect_leaders", "election_type", preferred ? "PREFERRED" : "UNCLEAN",
            "partitions", named), results);
    }

    private void reassign() {
        String name = anyTopic();
        if (name == null) return;
        int index = random.nextInt(partitions(name));
        List<Integer> target = random.nextDouble() < 0.8 ? replicas(0) : null;
        ReassignablePartition wanted = new ReassignablePartition().setPartitionIndex(index).setReplicas(target);
        AlterPartitionReassignmentsRequestData request = new AlterPartitionReassignmentsRequestData()
            .setTopics(List.of(new ReassignableTopic().setName(name).setPartitions(List.of(wanted))));
        Object result = answer(() -> name(replay(replication.alterPartitionReassignments(request))
            .responses().get(0).partitions().get(0).errorCode()));
        step(Json.object("type", "alter_partition_reassignments", "topic", name, "partition", index,
            "replicas", target), result);
    }
}
