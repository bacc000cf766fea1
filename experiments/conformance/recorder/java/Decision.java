package org.apache.kafka.controller;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.DirectoryId;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/** One change of a random partition, decided by PartitionChangeBuilder. */
final class Decision {
    private static final double[] ALIVE = {0.3, 0.6, 0.9};

    private Decision() { }

    static Map<String, Object> row(Random random) {
        int factor = 1 + random.nextInt(5);
        List<Integer> replicas = new ArrayList<>();
        for (int broker = 0; broker < factor; broker++) replicas.add(broker);
        Collections.shuffle(replicas, random);
        boolean elr = random.nextDouble() < 0.8;
        boolean lastKnown = random.nextDouble() < 0.6;
        int minIsr = 1 + random.nextInt(factor);
        PartitionRegistration partition = partition(random, replicas, elr, lastKnown, minIsr);
        Set<Integer> alive = new HashSet<>(Recorder.some(random, replicas, ALIVE[random.nextInt(3)]));
        PartitionChangeBuilder.Election election = PartitionChangeBuilder.Election.values()[random.nextInt(3)];

        List<Integer> isr = Recorder.list(partition.isr);
        List<Integer> targetIsr = null;
        List<Integer> targetReplicas = null;
        List<Integer> targetAdding = null;
        List<Integer> targetRemoving = null;
        List<Integer> unclean = null;
        LeaderRecoveryState targetRecovery = null;
        switch (random.nextInt(6)) {
            case 0 -> targetIsr = Recorder.some(random, replicas, 0.6);
            case 1 -> targetIsr = isr.stream().filter(alive::contains).toList();
            case 2 -> {
                int broker = replicas.get(random.nextInt(factor));
                unclean = List.of(broker);
                targetIsr = Recorder.without(isr, unclean);
                if (random.nextBoolean()) alive.remove(broker);
            }
            case 3 -> targetIsr = partition.addingReplicas.length == 0 ? null : replicas;
            case 4 -> targetRecovery = LeaderRecoveryState.RECOVERED;
            default -> {
                if (factor >= 2) {
                    targetReplicas = new ArrayList<>(replicas);
                    targetReplicas.add(7);
                    targetAdding = List.of(7);
                    targetRemoving = List.of(replicas.get(random.nextInt(factor)));
                }
            }
        }
        if (!elr && targetIsr != null && targetIsr.isEmpty()) targetIsr = null;

        PartitionChangeBuilder builder = Line.changes(partition, Uuid.ONE_UUID, alive::contains, minIsr, elr)
            .setElection(election)
            .setUseLastKnownLeaderInBalancedRecovery(lastKnown)
            .setDefaultDirProvider(broker -> DirectoryId.UNASSIGNED);
        if (targetIsr != null) builder.setTargetIsr(targetIsr);
        if (targetReplicas != null) builder.setTargetReplicas(targetReplicas);
        if (targetAdding != null) builder.setTargetAdding(targetAdding);
        if (targetRemoving != null) builder.setTargetRemoving(targetRemoving);
        if (unclean != null) builder.setUncleanShutdownReplicas(unclean);
        if (targetRecovery != null) builder.setTargetLeaderRecoveryState(targetRecovery);
        Map<String, Object> row = Json.object(
            "partition", Recorder.state(partition), "min_isr", minIsr, "acceptable_leaders", new TreeSet<>(alive),
            "election", election, "elr_enabled", elr, "use_last_known_leader", lastKnown,
            "target_isr", targetIsr, "target_replicas", targetReplicas, "target_adding", targetAdding,
            "target_removing", targetRemoving, "unclean_shutdown_replicas", unclean,
            "target_leader_recovery_state", targetRecovery);
        row.putAll(answer(partition, builder));
        return row;
    }

    private static PartitionRegistration partition(
        Random random, List<Integer> replicas, boolean elr, boolean lastKnown, int minIsr
    ) {
        boolean leaderless = random.nextDouble() < 0.3;
        List<Integer> isr;
        do {
            isr = Recorder.some(random, replicas, 0.6);
        } while (!elr && isr.isEmpty());
        boolean below = elr && isr.size() < minIsr;
        List<Integer> others = Recorder.without(replicas, isr);
        List<Integer> eligible = below ? Recorder.some(random, others, 0.5) : List.of();
        List<Integer> known = below ? Recorder.some(random, Recorder.without(others, eligible), 0.4) : List.of();
        if (lastKnown) known = isr.isEmpty() ? known.subList(0, Math.min(known.size(), 1)) : List.of();
        int leader = isr.isEmpty() || leaderless ? -1 : isr.get(random.nextInt(isr.size()));
        List<Integer> adding = List.of();
        List<Integer> removing = List.of();
        if (replicas.size() >= 2 && random.nextDouble() < 0.2) {
            adding = Recorder.some(random, replicas, 0.3);
            removing = Recorder.some(random, Recorder.without(replicas, adding), 0.3);
        }
        boolean recovering = random.nextDouble() < 0.15;
        Uuid[] directories = new Uuid[replicas.size()];
        Arrays.fill(directories, DirectoryId.UNASSIGNED);
        return new PartitionRegistration.Builder()
            .setReplicas(Recorder.array(replicas)).setDirectories(directories).setIsr(Recorder.array(isr))
            .setElr(Recorder.array(eligible)).setLastKnownElr(Recorder.array(known))
            .setAddingReplicas(Recorder.array(adding)).setRemovingReplicas(Recorder.array(removing))
            .setLeader(leader)
            .setLeaderRecoveryState(recovering ? LeaderRecoveryState.RECOVERING : LeaderRecoveryState.RECOVERED)
            .setLeaderEpoch(10 + random.nextInt(5)).setPartitionEpoch(20 + random.nextInt(5)).build();
    }

    private static Map<String, Object> answer(PartitionRegistration partition, PartitionChangeBuilder builder) {
        Optional<ApiMessageAndVersion> built;
        try {
            built = builder.build();
        } catch (RuntimeException error) {
            return Json.object("record", null, "after", null, "error", error.getClass().getSimpleName());
        }
        if (built.isEmpty()) return Json.object("record", null, "after", Recorder.state(partition), "error", null);
        PartitionChangeRecord change = (PartitionChangeRecord) built.get().message();
        Map<String, Object> record = Json.object(
            "isr", change.isr(), "leader", change.leader(), "replicas", change.replicas(),
            "removing_replicas", change.removingReplicas(), "adding_replicas", change.addingReplicas(),
            "leader_recovery_state", change.leaderRecoveryState(),
            "elr", change.eligibleLeaderReplicas(), "last_known_elr", change.lastKnownElr());
        return Json.object("record", record, "after", Recorder.state(partition.merge(change)), "error", null);
    }
}
