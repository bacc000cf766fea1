package org.apache.kafka.raft;

import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.internals.Topic;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.controller.Json;

/**
 * Records what one KafkaRaftClient does with random events: `RaftRecorder KIND SEED ROWS` prints a JSON line for each
 * row. A row has the initial state and the steps: an event, its answer, the requests that the node sent,
 * and its state afterwards. Replicas are [id, disk]; disk 0 is no directory id. In rows of the kind `raft-join` the
 * node has no vote at first, and makes itself a voter.
 */
public final class RaftRecorder {
    private static final TopicPartition LOG = Topic.CLUSTER_METADATA_TOPIC_PARTITION;
    private static final int NODE = 1;

    private final Random random;
    private final boolean joins;
    private final int disk;
    private final Map<Integer, Integer> leaders = new TreeMap<>();
    private final boolean isStatic;
    private final boolean isVoter;
    private final boolean isAmbitious;
    private final RaftNode node;
    private final List<Map<String, Object>> steps = new ArrayList<>();
    private final Map<String, Object> initial;
    private CompletableFuture<ApiMessage> change;
    /** Whether the node may miss changes of the voters in its log until it restarts. */
    private boolean isTruncated;

    private RaftRecorder(Random random, boolean joins) throws Exception {
        this.random = random;
        this.joins = joins;
        disk = joins && random.nextInt(3) > 0 ? 2 : 1;
        isStatic = !joins && random.nextInt(3) == 0;
        isVoter = !joins && random.nextInt(6) > 0;
        isAmbitious = isVoter && random.nextInt(3) > 0;
        boolean isAlone = !isStatic && random.nextInt(5) == 0;
        List<Integer> voters = !isVoter && disk == 1 ? List.of(2, 3) : isAlone && !joins ? List.of(1) : List.of(1, 2, 3);
        long start = isStatic ? 0 : 5;
        node = new RaftNode(NODE, disk, joins, isStatic, voters, start, 1);
        List<List<Integer>> batches = new ArrayList<>();
        int epoch = isStatic ? 0 : 1;
        for (int batch = random.nextInt(4); batch > 0; batch--) {
            epoch += random.nextInt(2) + (epoch == 0 ? 1 : 0);
            int count = 1 + random.nextInt(3);
            batches.add(List.of(epoch, count));
            node.log.append(RaftNode.Records.data(node.log.end(), epoch, count));
        }
        epoch += random.nextInt(2);
        int leader = epoch > 0 && voters.size() > 1 && (joins || random.nextInt(3) == 0) ? pick(2, 3) : -1;
        if (leader < 0 && isVoter && epoch > 0 && random.nextInt(6) == 0) leader = NODE;
        int voted = leader < 0 && isVoter && epoch > 0 && random.nextInt(3) == 0 ? pick(1, 2, 3) : -1;
        if (leader < 0 && voted < 0) epoch = -1;
        else node.remember(epoch, leader, voted < 0 ? null : RaftNode.key(voted, 1));
        if (leader > 0) leaders.put(epoch, leader);
        initial = map("static", isStatic, "voters", voters, "start", start, "start_epoch", isStatic ? 0 : 1,
            "batches", batches, "epoch", epoch, "leader", leader, "voted", voted);
        if (joins) initial.putAll(map("joins", true, "disk", disk));
        node.start();
        initial.put("state", state());
    }

    public static void main(String[] args) throws Exception {
        boolean joins = args[0].equals("raft-join");
        long seed = Long.parseLong(args[1]);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (int row = 0; row < Integer.parseInt(args[2]); row++) {
            RaftRecorder oracle = new RaftRecorder(new Random(seed * 1_000_003 + row), joins);
            for (int step = 0; step < 20 && oracle.step(); step++) { }
            oracle.node.close();
            out.println(Json.text(map("quorum", oracle.initial, "steps", oracle.steps)));
        }
        out.flush();
    }

    /** Makes one event; false if Kafka threw an exception on it, which ends the row without it. */
    private boolean step() throws Exception {
        node.sent.clear();
        Map<String, Object> event = event();
        if (event == null) return true;
        Object answer;
        try {
            answer = apply(event);
        } catch (RuntimeException thrown) {
            System.err.println("left out: " + event + " in " + state() + ": " + thrown);
            return false;
        }
        TreeSet<String> votes = new TreeSet<>();
        TreeSet<String> joined = new TreeSet<>();
        for (RaftRequest.Outbound request : node.sent) {
            if (request.data() instanceof VoteRequestData vote)
                votes.add((vote.topics().get(0).partitions().get(0).preVote() ? "pre_vote" : "vote") + "/"
                    + RaftNode.receiver(request));
            else if (request.data() instanceof AddRaftVoterRequestData added)
                joined.add(joining("add_voter", added.voterId(), added.voterDirectoryId(), request));
            else if (request.data() instanceof RemoveRaftVoterRequestData removed)
                joined.add(joining("remove_voter", removed.voterId(), removed.voterDirectoryId(), request));
        }
        Map<String, Object> state = state();
        steps.add(map("event", event, "answer", answer, "completed", completed(), "votes", votes, "state", state));
        if (joins) steps.get(steps.size() - 1).put("joins", joined);
        if (node.role().equals("leader")) leaders.put((int) state.get("epoch"), NODE);
        return true;
    }

    private static String joining(String kind, int voter, Uuid disk, RaftRequest.Outbound request) {
        return kind + "/" + voter + "/" + disk.getMostSignificantBits() + " to " + RaftNode.receiver(request);
    }

    private Map<String, Object> state() throws Exception {
        QuorumState quorum = node.client.quorum();
        return map("role", node.role(), "epoch", quorum.epoch(), "leader", quorum.leaderIdOrSentinel(),
            "voted", quorum.votedKey().map(RaftRecorder::key).orElse(null),
            "high_watermark", node.client.highWatermark().orElse(-1), "last_epoch", node.log.lastEpoch(),
            "end_offset", node.log.end(),
            "voters", voters());
    }

    private List<List<Integer>> voters() throws Exception {
        return node.voters().voterKeys().stream().sorted().map(RaftRecorder::key).toList();
    }

    private static List<Integer> key(ReplicaKey key) {
        return List.of(key.id(), key.directoryId().map(disk -> (int) disk.getMostSignificantBits()).orElse(0));
    }

    // -- choosing an event

    private Map<String, Object> event() throws Exception {
        int epoch = node.client.quorum().epoch();
        boolean leads = node.role().equals("leader");
        node.open.values().removeIf(request -> !node.isAwaited(request));
        int choice = random.nextInt(100);
        if (isAmbitious && random.nextInt(3) > 0) {
            boolean asks = node.role().equals("prospective") || node.role().equals("candidate");
            choice = leads ? 64 + random.nextInt(36) : asks ? 20 : random.nextInt(30) == 0 ? 91 : 0;
        }
        if (joins) choice = pick(0, 0, 20, 20, 20, 20, choice);
        if (choice < 14) return map("type", "advance", "ms", RaftNode.TICK_MS * pick(2, 5, 9, 10, 15, 20, 30));
        if (choice < 32 && !node.open.isEmpty()) return response(epoch);
        if (choice < 50) {
            int candidate = pick(2, 3, 3, 4);
            boolean ahead = random.nextBoolean()
                || node.client.quorum().votedKey().map(key -> key.id() == candidate).orElse(false);
            boolean preVote = random.nextBoolean();
            int asked = Math.max(1, epoch + pick(-1, 0, 0, 0, 1, 1, 2));
            int last = Math.max(0, node.log.lastEpoch() + (ahead ? pick(0, 0, 1) : pick(-1, 0)));
            return map("type", "vote", "candidate", List.of(candidate, disk()), "epoch", asked,
                "voter", pickKey(), "pre_vote", preVote, "last_epoch", Math.min(last, preVote ? asked : asked - 1),
                "last_offset", Math.max(0, node.log.end() + (ahead ? pick(0, 1) : pick(-1, 0, 2))));
        }
        if (choice < 58) {
            int announced = Math.max(0, epoch + pick(-1, 0, 0, 1, 1));
            int leader = leaderOf(announced);
            if (leader == NODE || announced == 0) return null;
            return map("type", "begin_epoch", "leader", leader, "epoch", announced, "voter", pickKey());
        }
        if (choice < 63) {
            int ended = Math.max(0, epoch + pick(-1, 0, 0, 0, 1));
            int leader = leaderOf(ended);
            if (leader == NODE || ended == 0) return null;
            return map("type", "end_epoch", "leader", leader, "epoch", ended, "successors",
                List.of(List.of(NODE, disk), List.of(5 - leader, 1)));
        }
        if (choice < 82 || leads && choice < 86) {
            boolean fits = random.nextInt(4) > 0;
            long offset = fits ? node.log.end() : Math.max(0, node.log.end() + pick(-3, -2, -1, 0, 1));
            int last = fits ? node.log.lastEpoch() : Math.max(0, node.log.lastEpoch() + pick(-2, -1, -1, 0, 1));
            int asked = Math.max(0, epoch + pick(0, 0, 0, 0, 0, -1, 1));
            Long from = node.log.epochs.get(last);
            boolean isImpossible = from != null && offset <= from && offset != node.log.start;
            if (isImpossible || last > asked || offset == 0 && last > 0) return null;
            if (offset == node.log.start && last > (int) initial.get("start_epoch")) return null;
            return map("type", "fetch", "replica", List.of(pick(2, 2, 3, 3, 4), disk()),
                "epoch", asked, "offset", offset, "last_epoch", last);
        }
        if (leads && choice < 90) return map("type", "append", "count", pick(1, 2, 3));
        if (choice < 94) return map("type", "restart");
        if (isStatic) return null;
        return map("type", choice < 97 ? "add_voter" : "remove_voter", "voter",
            List.of(pick(1, 2, 3, 4, 4), pick(1, 1, 1, 2)));
    }

    /** A response to one of the open requests of the node. */
    private Map<String, Object> response(int epoch) throws Exception {
        List<String> kinds = new ArrayList<>(node.open.keySet());
        RaftRequest.Outbound request = node.open.get(kinds.get(random.nextInt(kinds.size())));
        int from = RaftNode.receiver(request);
        if (from == NODE || from > 3) return null;
        int later = Math.max(epoch, epoch + pick(0, 0, 0, 0, 0, 1));
        boolean isNews = random.nextInt(4) == 0 || later > epoch;
        int leader = isNews ? leaderOf(later) : node.client.quorum().leaderIdOrSentinel();
        if (leader == NODE && !node.role().equals("leader")) leader = -1;
        if (request.data() instanceof VoteRequestData vote) {
            boolean granted = later == epoch && leader < 0 && random.nextInt(3) > 0;
            var asked = vote.topics().get(0).partitions().get(0);
            return map("type", "vote_response", "sender", from, "asked", asked.replicaEpoch(),
                "pre_vote", asked.preVote(), "granted", granted, "epoch", later, "leader", leader,
                "error", later == epoch ? "NONE" : "FENCED_LEADER_EPOCH");
        }
        boolean isAddition = request.data() instanceof AddRaftVoterRequestData;
        if (isAddition || request.data() instanceof RemoveRaftVoterRequestData)
            return map("type", "voter_response", "sender", from, "kind", isAddition ? "add_voter" : "remove_voter",
                "error", List.of("NONE", "NONE", "REQUEST_TIMED_OUT", "NOT_LEADER_OR_FOLLOWER",
                    isAddition ? "DUPLICATE_VOTER" : "VOTER_NOT_FOUND").get(random.nextInt(5)));
        if (!(request.data() instanceof FetchRequestData)) return null;
        boolean leads = later == epoch && node.client.quorum().leaderIdOrSentinel() == from;
        if (!leads || random.nextInt(8) == 0) {
            if (leader == from && later == epoch) leader = -1;
            if (leader < 0) leader = node.client.quorum().leaderIdOrSentinel() == from ? from : -1;
            return map("type", "fetch_response", "sender", from, "epoch", later, "leader", leader, "kind", "error",
                "error", later > epoch ? "FENCED_LEADER_EPOCH" : "NOT_LEADER_OR_FOLLOWER");
        }
        Map<String, Object> event = map("type", "fetch_response", "sender", from, "epoch", epoch, "leader", from);
        long end = node.log.end();
        long floor = Math.max(node.log.highWatermark, node.log.start);
        List<Long> cuts = node.log.batches.stream().map(RaftNode.Batch::base).filter(base -> base >= floor).toList();
        if (!cuts.isEmpty() && node.log.lastEpoch() < epoch && random.nextInt(3) == 0) {
            event.putAll(map("kind", "diverging", "diverging_epoch",
                Math.max(node.log.batches.get(0).epoch(), node.log.lastEpoch() - pick(0, 0, 1)),
                "diverging_end", cuts.get(random.nextInt(cuts.size()))));
            return event;
        }
        List<Map<String, Object>> batches = new ArrayList<>();
        if (node.log.lastEpoch() < epoch) batches.add(map("epoch", epoch, "leader_change", from, "count", 1));
        if (random.nextBoolean()) batches.add(map("epoch", epoch, "count", 1 + random.nextInt(3)));
        if (!isStatic && random.nextInt(4) == 0 && !(joins && isTruncated)) {
            List<List<Integer>> voters = new ArrayList<>(voters());
            List<Integer> changed = List.of(pick(1, 3, 4), 1);
            if (joins && changed.get(0) == NODE)
                changed = voters.stream().filter(voter -> voter.get(0) == NODE).findFirst().orElse(List.of(NODE, disk));
            if (voters.size() < 2 || !voters.remove(changed)) voters.add(changed);
            voters.sort((a, b) -> a.get(0) - b.get(0));
            if (voters.stream().map(voter -> voter.get(0)).distinct().count() == voters.size())
                batches.add(map("epoch", epoch, "voters", voters, "count", 1));
        }
        long reached = end + batches.stream().mapToInt(batch -> (int) batch.get("count")).sum();
        event.putAll(map("kind", "records", "batches", batches, "high_watermark",
            Math.max(floor, reached - random.nextInt(4))));
        return event;
    }

    /** The one leader that an epoch has in this row. */
    private int leaderOf(int epoch) {
        int known = node.client.quorum().leaderIdOrSentinel();
        if (epoch == node.client.quorum().epoch() && known >= 0) leaders.put(epoch, known);
        return leaders.computeIfAbsent(epoch, asked -> pick(2, 3));
    }

    /** The disk of another replica; with static voters all are known by their ids alone. */
    private int disk() { return isStatic ? 1 : pick(1, 1, 1, 2); }

    private List<Integer> pickKey() {
        int id = random.nextInt(12) == 0 ? 2 : NODE;
        int asked = pick(1, 1, 1, 1, 1, 0, 2);
        return List.of(id, asked == 0 || disk == 1 ? asked : 3 - asked);
    }

    private int pick(int... values) { return values[random.nextInt(values.length)]; }

    // -- applying an event

    private Object apply(Map<String, Object> event) throws Exception {
        switch ((String) event.get("type")) {
            case "advance": node.advance(number(event, "ms")); return null;
            case "restart": node.start(); isTruncated = false; return null;
            case "append": node.append(number(event, "count")); return null;
            case "vote_response", "fetch_response": respond(event); return null;
            case "voter_response": respondToJoining(event); return null;
            default:
                CompletableFuture<ApiMessage> future = node.request(message(event), version(event));
                for (RaftRequest.Outbound asked : List.copyOf(node.open.values()))
                    if (asked.data() instanceof ApiVersionsRequestData) node.respond(asked, supportsVoters());
                if (event.containsKey("voter") && version(event) == 0 && !future.isDone()) change = future;
                return answer(future);
        }
    }

    /** The answer of an earlier change of the voters, if it has come since the last event. */
    private Object completed() throws Exception {
        if (change == null || !change.isDone()) return null;
        Object found = answer(change);
        change = null;
        return found;
    }

    /** What a controller that can be a voter says of itself when the leader asks. */
    private static ApiMessage supportsVoters() {
        var features = new ApiVersionsResponseData.SupportedFeatureKeyCollection();
        features.add(new ApiVersionsResponseData.SupportedFeatureKey().setName("kraft.version").setMinVersion((short) 0)
            .setMaxVersion((short) 1));
        return new ApiVersionsResponseData().setSupportedFeatures(features);
    }

    private static int version(Map<String, Object> event) {
        return switch ((String) event.get("type")) {
            case "vote" -> 2;
            case "fetch" -> 17;
            case "add_voter", "remove_voter" -> 0;
            default -> 1;
        };
    }

    private ApiMessage message(Map<String, Object> event) {
        int epoch = event.containsKey("epoch") ? number(event, "epoch") : -1;
        switch ((String) event.get("type")) {
            case "vote":
                return RaftUtil.singletonVoteRequest(LOG, RaftNode.CLUSTER, epoch, replica(event, "candidate"),
                    replica(event, "voter"), number(event, "last_epoch"), number(event, "last_offset"),
                    (boolean) event.get("pre_vote"));
            case "begin_epoch":
                return RaftUtil.singletonBeginQuorumEpochRequest(LOG, RaftNode.CLUSTER, epoch, number(event, "leader"),
                    RaftNode.endpoints(number(event, "leader")), replica(event, "voter"));
            case "end_epoch":
                int leader = number(event, "leader");
                var successors = ((List<?>) event.get("successors")).stream().map(RaftRecorder::replica).toList();
                var ended = RaftUtil.singletonEndQuorumEpochRequest(LOG, RaftNode.CLUSTER, epoch, leader, successors);
                ended.leaderEndpoints().add(new EndQuorumEpochRequestData.LeaderEndpoint()
                    .setName(RaftNode.LISTENER.value()).setHost("node" + leader).setPort(9_000 + leader));
                return ended;
            case "fetch":
                ReplicaKey key = replica(event, "replica");
                return RaftUtil.singletonFetchRequest(LOG, Uuid.METADATA_TOPIC_ID, partition -> partition
                        .setCurrentLeaderEpoch(epoch).setFetchOffset(number(event, "offset"))
                        .setLastFetchedEpoch(number(event, "last_epoch"))
                        .setReplicaDirectoryId(key.directoryId().orElse(ReplicaKey.NO_DIRECTORY_ID)))
                    .setClusterId(RaftNode.CLUSTER).setMaxWaitMs(0)
                    .setReplicaState(new FetchRequestData.ReplicaState().setReplicaId(key.id()));
            case "add_voter":
                ReplicaKey added = replica(event, "voter");
                return new AddRaftVoterRequestData().setClusterId(RaftNode.CLUSTER).setTimeoutMs(1_000)
                    .setVoterId(added.id()).setVoterDirectoryId(added.directoryId().orElseThrow())
                    .setListeners(RaftNode.endpoints(added.id()).toAddVoterRequest());
            default:
                ReplicaKey removed = replica(event, "voter");
                return new RemoveRaftVoterRequestData().setClusterId(RaftNode.CLUSTER).setVoterId(removed.id())
                    .setVoterDirectoryId(removed.directoryId().orElseThrow());
        }
    }

    private Object answer(CompletableFuture<ApiMessage> future) throws Exception {
        ApiMessage found = future.getNow(null);
        if (found == null) return null;
        if (found instanceof VoteResponseData data) {
            if (data.errorCode() != 0) return failed(data.errorCode());
            var part = data.topics().get(0).partitions().get(0);
            return map("error", name(part.errorCode()), "epoch", part.leaderEpoch(), "leader", part.leaderId(),
                "granted", part.voteGranted());
        }
        if (found instanceof BeginQuorumEpochResponseData data) {
            if (data.errorCode() != 0) return failed(data.errorCode());
            var part = data.topics().get(0).partitions().get(0);
            return map("error", name(part.errorCode()), "epoch", part.leaderEpoch(), "leader", part.leaderId());
        }
        if (found instanceof EndQuorumEpochResponseData data) {
            if (data.errorCode() != 0) return failed(data.errorCode());
            var part = data.topics().get(0).partitions().get(0);
            return map("error", name(part.errorCode()), "epoch", part.leaderEpoch(), "leader", part.leaderId());
        }
        if (found instanceof FetchResponseData data) {
            if (data.errorCode() != 0) return failed(data.errorCode());
            var part = data.responses().get(0).partitions().get(0);
            var leader = part.currentLeader();
            int epoch = leader.leaderEpoch();
            var fields = map("error", name(part.errorCode()), "epoch", epoch, "leader", leader.leaderId());
            if (part.errorCode() == 0) fields.putAll(map("high_watermark", part.highWatermark(),
                "diverging", List.of(part.divergingEpoch().epoch(), part.divergingEpoch().endOffset()),
                "snapshot", List.of(part.snapshotId().epoch(), part.snapshotId().endOffset()), "end", endOf(part)));
            return fields;
        }
        if (found instanceof AddRaftVoterResponseData data) return failed(data.errorCode());
        return failed(((RemoveRaftVoterResponseData) found).errorCode());
    }

    /** The offset after the records of a fetch response, -1 without records. */
    private static long endOf(FetchResponseData.PartitionData part) throws Exception {
        Object records = RaftNode.Records.get(part);
        ByteBuffer rest = records == null ? ByteBuffer.allocate(0) : RaftNode.Records.bytes(records);
        long end = -1;
        while (rest.hasRemaining()) {
            RaftNode.Batch batch = new RaftNode.Batch(rest.slice());
            end = batch.end();
            rest.position(rest.position() + batch.size());
        }
        return end;
    }

    private void respond(Map<String, Object> event) throws Exception {
        boolean isVote = event.get("type").equals("vote_response");
        int from = number(event, "sender");
        int epoch = number(event, "epoch");
        int leader = number(event, "leader");
        RaftRequest.Outbound request = node.open.get((isVote ? "VoteRequestData/" : "FetchRequestData/") + from);
        Endpoints endpoints = leader < 0 ? Endpoints.empty() : RaftNode.endpoints(leader);
        Errors error = event.containsKey("error") ? Errors.valueOf((String) event.get("error")) : Errors.NONE;
        if (isVote) {
            node.respond(request, RaftUtil.singletonVoteResponse(RaftNode.LISTENER, (short) 2, Errors.NONE, LOG, error,
                epoch, leader, (boolean) event.get("granted"), endpoints));
            return;
        }
        FetchResponseData data = RaftUtil.singletonFetchResponse(RaftNode.LISTENER, (short) 17, LOG,
            Uuid.METADATA_TOPIC_ID, Errors.NONE, leader, endpoints, part -> part.setErrorCode(error.code()));
        var part = data.responses().get(0).partitions().get(0);
        part.currentLeader().setLeaderId(leader).setLeaderEpoch(epoch);
        if (event.get("kind").equals("diverging")) {
            isTruncated = true;
            part.setDivergingEpoch(new FetchResponseData.EpochEndOffset().setEpoch(number(event, "diverging_epoch"))
                .setEndOffset(number(event, "diverging_end")));
        } else if (event.get("kind").equals("records")) {
            part.setHighWatermark(number(event, "high_watermark"));
            RaftNode.Records.set(part, records((List<?>) event.get("batches")));
        }
        node.respond(request, data);
    }

    private void respondToJoining(Map<String, Object> event) {
        boolean isAddition = event.get("kind").equals("add_voter");
        short error = Errors.valueOf((String) event.get("error")).code();
        node.respond(
            node.open.get((isAddition ? "AddRaftVoterRequestData/" : "RemoveRaftVoterRequestData/") + event.get("sender")),
            isAddition ? new AddRaftVoterResponseData().setErrorCode(error)
                : new RemoveRaftVoterResponseData().setErrorCode(error));
    }

    private ByteBuffer records(List<?> batches) throws Exception {
        ByteBuffer all = ByteBuffer.allocate(8_192);
        long base = node.log.end();
        for (Object described : batches) {
            @SuppressWarnings("unchecked")
            Map<String, Object> batch = (Map<String, Object>) described;
            int epoch = number(batch, "epoch");
            if (batch.containsKey("leader_change")) {
                all.put(RaftNode.Records.control("withLeaderChangeMessage", base, epoch,
                    new LeaderChangeMessage().setLeaderId(number(batch, "leader_change"))));
            } else if (batch.containsKey("voters")) {
                Map<Integer, VoterSet.VoterNode> nodes = new TreeMap<>();
                for (Object voter : (List<?>) batch.get("voters")) {
                    ReplicaKey key = replica(voter);
                    nodes.put(key.id(), RaftNode.voter(key));
                }
                all.put(RaftNode.Records.control("withVotersRecord", base, epoch,
                    VoterSet.fromMap(nodes).toVotersRecord((short) 0)));
            } else {
                all.put(RaftNode.Records.data(base, epoch, number(batch, "count")));
            }
            base += number(batch, "count");
        }
        return all.flip();
    }

    private static Map<String, Object> failed(short code) { return map("error", name(code)); }

    private static String name(short code) { return Errors.forCode(code).name(); }

    private static int number(Map<String, Object> fields, String name) {
        return ((Number) fields.get(name)).intValue();
    }

    private static ReplicaKey replica(Map<String, Object> fields, String name) { return replica(fields.get(name)); }

    private static ReplicaKey replica(Object pair) {
        List<?> numbers = (List<?>) pair;
        return RaftNode.key((Integer) numbers.get(0), (Integer) numbers.get(1));
    }

    private static Map<String, Object> map(Object... pairs) { return Json.object(pairs); }
}
