package org.apache.kafka.controller;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData.ReassignablePartition;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData.ReassignableTopic;
import org.apache.kafka.common.message.CreateTopicsRequestData;
import org.apache.kafka.common.message.ElectLeadersRequestData;
import org.apache.kafka.common.metadata.ConfigRecord;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/** Random events on a controller with one topic of one partition. */
final class PartitionTrace extends RecordedController {
    private static final String TOPIC = "foo";
    private static final double[] USUAL = {0.22, 0.45, 0.57, 0.85, 0.90, 0.94, 0.96};
    private static final double[] REASSIGNING = {0.15, 0.33, 0.43, 0.63, 0.68, 0.71, 0.72};
    private final double[] below;
    private Uuid topic;

    /** Which events are how frequent follows from {@code reassigning}. */
    PartitionTrace(Random random, boolean reassigning) {
        super(random);
        below = reassigning ? REASSIGNING : USUAL;
    }

    private PartitionRegistration partition() {
        return topic == null ? null : replication.getPartition(topic, 0);
    }

    private void step(Map<String, Object> event, Object result) {
        steps.add(Json.object("event", event, "result", result, "partition", Recorder.state(partition())));
    }

    private void beat(String type, int broker) {
        step(heartbeatEvent(type, broker), heartbeat(type, broker));
    }

    Map<String, Object> row() {
        int brokers = 3 + random.nextInt(3);
        for (int broker = 0; broker < brokers; broker++) {
            step(register(broker, false), "NONE");
            beat("unfence", broker);
        }
        int factor = Math.min(brokers, 1 + random.nextInt(5));
        int minIsr = 1 + random.nextInt(Math.min(factor, 4) + (random.nextDouble() < 0.15 ? 1 : 0));
        create(factor, minIsr);
        events(brokers, this::event);
        return withFault(Json.object(
            "elr_enabled", elr, "effective_min_insync_replicas", Math.min(minIsr, factor), "steps", steps));
    }

    private void create(int factor, int minIsr) {
        List<Integer> replicas = new ArrayList<>(epochs.keySet());
        Collections.shuffle(replicas, random);
        replicas = replicas.subList(0, factor);
        CreateTopicsRequestData request = new CreateTopicsRequestData();
        request.topics().add(creatable(TOPIC, List.of(replicas)));
        topic = replay(Line.createTopics(replication, context(ApiKeys.CREATE_TOPICS), request))
            .topics().find(TOPIC).topicId();
        replay(List.of(new ApiMessageAndVersion(new ConfigRecord().setResourceType(ConfigResource.Type.TOPIC.id())
            .setResourceName(TOPIC).setName(MIN_ISR).setValue(String.valueOf(minIsr)), (short) 0)));
        step(Json.object("type", "create_topic", "name", TOPIC, "replicas", replicas, "min_insync_replicas", minIsr),
            "NONE");
    }

    private void event(double chosen, int broker) {
        boolean fenced = fenced(broker);
        if (chosen < below[0]) {
            if (!fenced) step(fence(broker), "NONE");
        } else if (chosen < below[1]) {
            if (fenced) beat("unfence", broker);
        } else if (chosen < below[2]) {
            if (fenced) step(register(broker, elr && random.nextDouble() < 0.6), "NONE");
        } else if (chosen < below[3]) {
            Map<String, Object> proposal = proposal(partition());
            if (proposal != null) step(proposal, alter(topic, 0, proposal));
        } else if (chosen < below[4]) {
            elect();
        } else if (chosen < below[5]) {
            if (!fenced) beat("controlled_shutdown", broker);
        } else if (chosen < below[6]) {
            if (!fenced) beat("want_fence", broker);
        } else {
            reassign();
        }
    }

    private void elect() {
        boolean preferred = random.nextBoolean();
        ElectLeadersRequestData request = new ElectLeadersRequestData().setElectionType((byte) (preferred ? 0 : 1));
        request.topicPartitions().add(
            new ElectLeadersRequestData.TopicPartitions().setTopic(TOPIC).setPartitions(List.of(0)));
        short error = replay(replication.electLeaders(request))
            .replicaElectionResults().get(0).partitionResult().get(0).errorCode();
        step(Json.object("type", "elect_leaders", "election_type", preferred ? "PREFERRED" : "UNCLEAN"), name(error));
    }

    private void reassign() {
        List<Integer> target = null;
        if (random.nextDouble() < 0.8) {
            List<Integer> all = new ArrayList<>(epochs.keySet());
            Collections.shuffle(all, random);
            target = new ArrayList<>(all.subList(0, Math.min(all.size(), 1 + random.nextInt(4))));
            if (random.nextDouble() < 0.05) target.add(target.get(0));
        }
        ReassignablePartition wanted = new ReassignablePartition().setPartitionIndex(0).setReplicas(target);
        short error = replay(replication.alterPartitionReassignments(new AlterPartitionReassignmentsRequestData()
            .setTopics(List.of(new ReassignableTopic().setName(TOPIC).setPartitions(List.of(wanted))))))
            .responses().get(0).partitions().get(0).errorCode();
        step(Json.object("type", "alter_partition_reassignments", "replicas", target), name(error));
    }
}
