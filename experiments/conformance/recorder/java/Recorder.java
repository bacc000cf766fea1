package org.apache.kafka.controller;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.SplittableRandom;
import org.apache.kafka.metadata.PartitionRegistration;

/**
 * Prints rows of one kind, which a release of Kafka's controller answers: {@code Recorder KIND SEED ROWS}. The classes
 * are in the package of the controller's, whose methods are not public. What differs between the releases is in Line.
 */
public final class Recorder {
    private Recorder() { }

    public static void main(String[] arguments) throws Exception {
        long seed = Long.parseLong(arguments[1]);
        int rows = Integer.parseInt(arguments[2]);
        try (PrintStream out = new PrintStream(System.out, false, "UTF-8")) {
            Random decisions = new Random(seed);
            for (int row = 0; row < rows; row++) {
                long ofRow = seed * 1_000_003L + row;
                Random mixed = new Random(new SplittableRandom(ofRow).nextLong());
                out.println(Json.text(switch (arguments[0]) {
                    case "decisions" -> Decision.row(decisions);
                    case "partition" -> new PartitionTrace(new Random(ofRow), false).row();
                    case "reassignments" -> new PartitionTrace(mixed, true).row();
                    case "cluster" -> new ClusterTrace(mixed).row();
                    default -> throw new IllegalArgumentException(arguments[0]);
                }));
            }
        }
    }

    /** Each element with this probability. */
    static List<Integer> some(Random random, List<Integer> from, double probability) {
        List<Integer> chosen = new ArrayList<>();
        for (int element : from) {
            if (random.nextDouble() < probability) chosen.add(element);
        }
        return chosen;
    }

    static List<Integer> without(List<Integer> list, List<Integer> removed) {
        return list.stream().filter(element -> !removed.contains(element)).toList();
    }

    static List<Integer> list(int[] array) {
        return new ArrayList<>(Arrays.stream(array).boxed().toList());
    }

    static int[] array(List<Integer> list) {
        return list.stream().mapToInt(Integer::intValue).toArray();
    }

    static Map<String, Object> state(PartitionRegistration partition) {
        return partition == null ? null : Json.object(
            "replicas", partition.replicas, "isr", partition.isr,
            "elr", partition.elr, "last_known_elr", partition.lastKnownElr,
            "adding_replicas", partition.addingReplicas, "removing_replicas", partition.removingReplicas,
            "leader", partition.leader, "leader_recovery_state", partition.leaderRecoveryState,
            "leader_epoch", partition.leaderEpoch, "partition_epoch", partition.partitionEpoch);
    }
}
