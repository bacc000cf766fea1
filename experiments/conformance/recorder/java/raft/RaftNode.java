package org.apache.kafka.raft;

import java.io.IOException;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.stream.Stream;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.feature.SupportedVersionRange;
import org.apache.kafka.common.internals.Topic;
import org.apache.kafka.common.memory.MemoryPool;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.raft.internals.BlockingMessageQueue;
import org.apache.kafka.raft.internals.KRaftControlRecordStateMachine;
import org.apache.kafka.raft.internals.StringSerde;
import org.apache.kafka.server.common.KRaftVersion;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.snapshot.FileRawSnapshotReader;
import org.apache.kafka.snapshot.FileRawSnapshotWriter;
import org.apache.kafka.snapshot.RecordsSnapshotWriter;

/**
 * One KafkaRaftClient with a clock, a network, a log and an election state of its own. Releases differ in packages and
 * in a few signatures, which are found by reflection; so this file compiles against all of them.
 */
final class RaftNode {
    static final ListenerName LISTENER = ListenerName.normalised("CONTROLLER");
    static final String CLUSTER = new Uuid(0, 7).toString();
    /** The versions of kraft.version. */
    static final SupportedVersionRange FEATURES = new SupportedVersionRange((short) 0, (short) 1);
    static final int TICK_MS = 100;
    /**
     * How often the node is polled after the last message in an instant, so that all that is due has happened. A queue
     * that is empty by its own account may still hold wakeups (to 4.3), behind which the next message waits.
     */
    private static final int POLLS = 6;
    private static final int ELECTION_MS = 1_000;
    private static final int FETCH_MS = 2_000;

    final int id;
    final int disk;
    final Clock clock = new Clock();
    final Log log;
    /** The newest open request by kind and destination. */
    final Map<String, RaftRequest.Outbound> open = new TreeMap<>();
    /** Requests sent since the last event. */
    final List<RaftRequest.Outbound> sent = new ArrayList<>();
    private final Map<RaftRequest.Outbound, CompletableFuture<RaftResponse.Inbound>> futures = new HashMap<>();
    private final Map<Integer, InetSocketAddress> staticVoters = new TreeMap<>();
    private final Map<String, Object> options = new TreeMap<>();
    private final StateStore store = new StateStore();
    private final Map<Long, List<CompletableFuture<?>>> expirations = new TreeMap<>();
    private BlockingMessageQueue queue;
    private int correlationId;
    KafkaRaftClient<String> client;

    /** The voters are on their disks 1. A node that joins makes itself a voter where the release can. */
    RaftNode(int id, int disk, boolean joins, boolean isStatic, List<Integer> voters, long start, int startEpoch)
            throws Exception {
        this.id = id;
        this.disk = disk;
        log = new Log(start, startEpoch);
        options.put(QuorumConfig.QUORUM_ELECTION_TIMEOUT_MS_CONFIG, ELECTION_MS);
        options.put(QuorumConfig.QUORUM_FETCH_TIMEOUT_MS_CONFIG, FETCH_MS);
        options.put(QuorumConfig.QUORUM_LINGER_MS_CONFIG, 0);
        if (joins) options.put("controller.quorum.auto.join.enable", true);
        Map<Integer, VoterSet.VoterNode> nodes = new TreeMap<>();
        for (int voter : voters) {
            if (isStatic) staticVoters.put(voter, address(voter));
            nodes.put(voter, voter(key(voter, 1)));
        }
        if (!isStatic) log.writeSnapshot(VoterSet.fromMap(nodes), clock);
    }

    static ReplicaKey key(int id, int disk) {
        return ReplicaKey.of(id, disk == 0 ? ReplicaKey.NO_DIRECTORY_ID : new Uuid(disk, id));
    }

    static InetSocketAddress address(int id) {
        return InetSocketAddress.createUnresolved("node" + id, 9_000 + id);
    }

    static Endpoints endpoints(int id) {
        return Endpoints.fromInetSocketAddresses(Map.of(LISTENER, address(id)));
    }

    static VoterSet.VoterNode voter(ReplicaKey key) {
        return VoterSet.VoterNode.of(key, endpoints(key.id()), FEATURES);
    }

    void remember(int epoch, int leader, ReplicaKey voted) {
        store.state = new ElectionState(epoch, leader < 0 ? OptionalInt.empty() : OptionalInt.of(leader),
            Optional.ofNullable(voted), Set.of()).toQuorumStateData((short) (staticVoters.isEmpty() ? 1 : 0));
    }

    /** Starts or restarts the node on its log and its election state. */
    void start() throws Exception {
        open.clear();
        futures.clear();
        expirations.clear();
        log.highWatermark = log.start;
        queue = new BlockingMessageQueue();
        Class<?> logType = found("org.apache.kafka.raft.RaftLog", "org.apache.kafka.raft.ReplicatedLog");
        Object logContext = found("org.apache.kafka.common.utils.internals.LogContext",
            "org.apache.kafka.common.utils.LogContext").getConstructor().newInstance();
        List<InetSocketAddress> servers = List.of(address(2), address(3));
        Constructor<?> constructor = Arrays.stream(KafkaRaftClient.class.getDeclaredConstructors())
            .max(Comparator.comparingInt(Constructor::getParameterCount)).orElseThrow();
        @SuppressWarnings("unchecked")
        KafkaRaftClient<String> made = (KafkaRaftClient<String>) constructor.newInstance(
            OptionalInt.of(id), new Uuid(disk, id), new StringSerde(), proxy(NetworkChannel.class, this::network), queue,
            proxy(logType, log), MemoryPool.NONE, clock, proxy(ExpirationService.class, this::failAfter), 500, true,
            CLUSTER, staticVoters.isEmpty() ? servers : List.of(), endpoints(id), FEATURES, logContext,
            new Lowest(), new QuorumConfig(new AbstractConfig(QuorumConfig.CONFIG_DEF, options, false)));
        client = made;
        client.initialize(staticVoters, store, new Metrics(), ignored -> { });
        client.register((RaftClient.Listener<String>) proxy(RaftClient.Listener.class, (self, method, args) -> {
            if (args != null && args[0] instanceof AutoCloseable reader) reader.close();
            return null;
        }));
        settle();
    }

    /** Deletes the snapshot and its folder. */
    void close() throws IOException {
        try (Stream<Path> files = Files.list(log.directory)) {
            for (Path file : files.toList()) Files.delete(file);
        }
        Files.delete(log.directory);
    }

    void advance(int ms) {
        for (int passed = 0; passed < ms; passed += TICK_MS) {
            clock.nowMs += TICK_MS;
            settle();
        }
    }

    void settle() {
        for (long due : List.copyOf(expirations.keySet()))
            if (due <= clock.nowMs)
                expirations.remove(due).forEach(it -> it.completeExceptionally(new TimeoutException()));
        for (int quiet = 0; quiet < POLLS;) {
            quiet = queue.isEmpty() ? quiet + 1 : 0;
            if (quiet > 0) queue.wakeup();
            client.poll();
        }
    }

    /** Passes a request to the node; the response completes at once, later, or never. */
    CompletableFuture<ApiMessage> request(ApiMessage message, int version) throws Exception {
        CompletableFuture<ApiMessage> answer = new CompletableFuture<>();
        var inbound = new RaftRequest.Inbound(LISTENER, ++correlationId, (short) version, message, clock.nowMs);
        Method handle = Arrays.stream(KafkaRaftClient.class.getMethods())
            .filter(method -> method.getName().equals("handle")).findFirst().orElseThrow();
        Object stage = handle.invoke(client, inbound);
        if (stage == null) stage = RaftRequest.Inbound.class.getField("completion").get(inbound);
        ((CompletionStage<?>) stage).thenAccept(found -> answer.complete(((RaftMessage) found).data()));
        settle();
        return answer;
    }

    /** The node that a request goes to, also if it is known by its address alone. */
    static int receiver(RaftRequest.Outbound request) { return request.destination().port() - 9_000; }

    void respond(RaftRequest.Outbound request, ApiMessage data) {
        open.values().remove(request);
        futures.remove(request).complete(
            new RaftResponse.Inbound(request.correlationId(), data, request.destination()));
        settle();
    }

    /** Whether the node still waits for the response to a request that it sent. */
    boolean isAwaited(RaftRequest.Outbound request) {
        try {
            Field field = KafkaRaftClient.class.getDeclaredField("requestManager");
            field.setAccessible(true);
            RequestManager manager = (RequestManager) field.get(client);
            return manager.isResponseExpected(request.destination(), request.correlationId())
                && !manager.hasRequestTimedOut(request.destination(), clock.nowMs);
        } catch (ReflectiveOperationException absent) {
            throw new IllegalStateException(absent);
        }
    }

    void append(int count) {
        client.prepareAppend(client.quorum().epoch(), Collections.nCopies(count, "r"));
        client.schedulePreparedAppend();
        settle();
    }

    String role() {
        QuorumState quorum = client.quorum();
        if (quorum.isLeader()) return "leader";
        if (quorum.isCandidate()) return "candidate";
        if (quorum.isProspective()) return "prospective";
        if (quorum.isFollower()) return "follower";
        return quorum.isResigned() ? "resigned" : "unattached";
    }

    VoterSet voters() throws Exception {
        Field field = KafkaRaftClient.class.getDeclaredField("partitionState");
        field.setAccessible(true);
        return ((KRaftControlRecordStateMachine) field.get(client)).lastVoterSet();
    }

    private Object network(Object self, Method method, Object[] args) throws Exception {
        if (method.getName().equals("newCorrelationId")) return ++correlationId;
        if (method.getName().equals("listenerName")) return LISTENER;
        if (!method.getName().equals("send")) return null;
        RaftRequest.Outbound request = (RaftRequest.Outbound) args[0];
        CompletableFuture<RaftResponse.Inbound> future = new CompletableFuture<>();
        if (method.getReturnType() == void.class) {
            @SuppressWarnings("unchecked")
            var own = (CompletableFuture<RaftResponse.Inbound>) RaftRequest.Outbound.class.getField("completion")
                .get(request);
            future = own;
        }
        futures.put(request, future);
        open.put(request.data().getClass().getSimpleName() + "/" + receiver(request), request);
        sent.add(request);
        return future;
    }

    private Object failAfter(Object self, Method method, Object[] args) {
        CompletableFuture<?> future = new CompletableFuture<>();
        expirations.computeIfAbsent(clock.nowMs + (Long) args[0], due -> new ArrayList<>()).add(future);
        return future;
    }

    static <I> I proxy(Class<I> type, InvocationHandler handler) {
        InvocationHandler whole = (self, method, args) -> {
            if (method.getDeclaringClass() == Object.class)
                return method.getName().equals("equals") ? self == args[0] : (Object) System.identityHashCode(self);
            return handler.invoke(self, method, args);
        };
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, whole));
    }

    static Class<?> found(String... names) {
        for (String name : names) {
            try {
                return Class.forName(name);
            } catch (ClassNotFoundException absent) {
                continue;
            }
        }
        throw new IllegalStateException("no class " + String.join(", ", names));
    }

    /** Lets every drawn time be its shortest. */
    static final class Lowest extends Random {
        @Override public int nextInt(int bound) { return 0; }

        @Override public int nextInt(int origin, int bound) { return origin; }
    }

    static final class Clock implements Time {
        long nowMs = 1_000_000;

        @Override public long milliseconds() { return nowMs; }

        @Override public long nanoseconds() { return nowMs * 1_000_000; }

        @Override public void sleep(long ms) { nowMs += ms; }

        @Override public void waitObject(Object on, java.util.function.Supplier<Boolean> until, long deadlineMs) {
            throw new UnsupportedOperationException("waitObject");
        }
    }

    /** The quorum-state file, without a disk. */
    static final class StateStore implements QuorumStateStore {
        private org.apache.kafka.raft.generated.QuorumStateData state;

        @Override public Optional<ElectionState> readElectionState() {
            return Optional.ofNullable(state).map(ElectionState::fromQuorumStateData);
        }

        @Override public void writeElectionState(ElectionState latest, KRaftVersion version) {
            state = latest.toQuorumStateData(version.quorumStateVersion());
        }

        @Override public Path path() { return Path.of("quorum-state"); }

        @Override public void clear() { state = null; }
    }

    /** A batch of the log; its header has the base offset at byte 0, the epoch at 12, the last offset delta at 23. */
    record Batch(ByteBuffer bytes) {
        long base() { return bytes.getLong(0); }

        int size() { return bytes.getInt(8) + 12; }

        int epoch() { return bytes.getInt(12); }

        boolean isControl() { return (bytes.getShort(21) & 0x20) != 0; }

        long end() { return base() + bytes.getInt(23) + 1; }
    }

    /** The log in memory, by the rules of Kafka's log of one segment; called by the names of the interface. */
    static final class Log implements InvocationHandler {
        final List<Batch> batches = new ArrayList<>();
        final TreeMap<Integer, Long> epochs = new TreeMap<>();
        final Path directory;
        long start;
        long highWatermark;
        private Optional<OffsetAndEpoch> snapshot = Optional.empty();

        Log(long start, int startEpoch) throws Exception {
            this.start = start;
            directory = Files.createTempDirectory("raft");
            if (start > 0) snapshot = Optional.of(new OffsetAndEpoch(start, startEpoch));
        }

        void writeSnapshot(VoterSet voters, Time time) {
            var writer = FileRawSnapshotWriter.create(directory, snapshot.orElseThrow());
            try (var records = new RecordsSnapshotWriter.Builder().setTime(time)
                    .setKraftVersion(KRaftVersion.KRAFT_VERSION_1).setVoterSet(Optional.of(voters))
                    .setRawSnapshotWriter(writer).build(new StringSerde())) {
                records.freeze();
            }
        }

        long end() { return batches.isEmpty() ? start : batches.get(batches.size() - 1).end(); }

        int lastEpoch() {
            return epochs.isEmpty() ? snapshot.map(OffsetAndEpoch::epoch).orElse(0) : epochs.lastKey();
        }

        OffsetAndEpoch endOf(int epoch) {
            if (epochs.isEmpty() || epoch > epochs.lastKey()) return new OffsetAndEpoch(end(), lastEpoch());
            if (epoch == epochs.lastKey()) return new OffsetAndEpoch(end(), epoch);
            Integer floor = epochs.floorKey(epoch);
            long end = epochs.higherEntry(epoch).getValue();
            if (floor == null && snapshot.isPresent() && snapshot.get().offset() == end) return snapshot.get();
            return new OffsetAndEpoch(end, floor == null ? epoch : floor);
        }

        Object append(ByteBuffer all) {
            long first = end();
            for (ByteBuffer rest = all.duplicate(); rest.hasRemaining();) {
                Batch batch = new Batch(rest.slice());
                if (batch.base() != end()) throw new IllegalStateException("gap at " + end() + ": " + batch.base());
                batches.add(new Batch(rest.slice().limit(batch.size()).slice()));
                if (epochs.isEmpty() || epochs.lastKey() < batch.epoch()) epochs.put(batch.epoch(), batch.base());
                rest.position(rest.position() + batch.size());
            }
            return new LogAppendInfo(first, end() - 1);
        }

        void truncate(long offset) {
            if (offset < highWatermark) throw new IllegalArgumentException("truncation below the high watermark");
            batches.removeIf(batch -> batch.end() > offset);
            epochs.values().removeIf(from -> from >= offset);
        }

        Object read(long from, boolean isCommitted) throws Exception {
            List<Batch> found = batches.stream()
                .filter(batch -> batch.end() > from && (!isCommitted || batch.end() <= highWatermark)).toList();
            ByteBuffer all = ByteBuffer.allocate(found.stream().mapToInt(Batch::size).sum());
            found.forEach(batch -> all.put(batch.bytes().duplicate()));
            return LogFetchInfo.class.getConstructors()[0].newInstance(
                Records.readable(all.flip()), new LogOffsetMetadata(from));
        }

        @Override
        public Object invoke(Object self, Method method, Object[] args) throws Throwable {
            if (method.isDefault()) {
                return method.getName().equals("close") ? null : InvocationHandler.invokeDefault(self, method, args);
            }
            switch (method.getName()) {
                case "appendAsLeader", "appendAsFollower": return append(Records.bytes(args[0]));
                case "read": return read((Long) args[0], args[1] == Isolation.COMMITTED);
                case "lastFetchedEpoch": return lastEpoch();
                case "endOffsetForEpoch": return endOf((Integer) args[0]);
                case "endOffset": return new LogOffsetMetadata(end());
                case "highWatermark": return new LogOffsetMetadata(highWatermark);
                case "startOffset": return start;
                case "initializeLeaderEpoch": epochs.putIfAbsent((Integer) args[0], end()); return null;
                case "truncateTo": truncate((Long) args[0]); return null;
                case "truncateToLatestSnapshot", "deleteBeforeSnapshot", "maybeClean": return false;
                case "updateHighWatermark": highWatermark = ((LogOffsetMetadata) args[0]).offset(); return null;
                case "flush", "onSnapshotFrozen": return null;
                case "topicPartition": return Topic.CLUSTER_METADATA_TOPIC_PARTITION;
                case "topicId": return Uuid.METADATA_TOPIC_ID;
                case "latestSnapshotId", "earliestSnapshotId": return snapshot;
                case "latestSnapshot", "readSnapshot":
                    return snapshot.map(id -> FileRawSnapshotReader.open(directory, id));
                default: throw new UnsupportedOperationException(method.getName());
            }
        }
    }

    /** The records classes, whose package depends on the release. */
    static final class Records {
        private static final String OLD = "org.apache.kafka.common.record.";

        static Class<?> type(String name) { return found(OLD + "internal." + name, OLD + name); }

        static Object readable(ByteBuffer bytes) throws Exception {
            return type("MemoryRecords").getMethod("readableRecords", ByteBuffer.class).invoke(null, bytes);
        }

        static ByteBuffer bytes(Object records) throws Exception {
            return ((ByteBuffer) records.getClass().getMethod("buffer").invoke(records)).duplicate();
        }

        /** `count` data records from `base` on. */
        static ByteBuffer data(long base, int epoch, int count) throws Exception {
            Class<?> simple = type("SimpleRecord");
            Object records = Array.newInstance(simple, count);
            for (int i = 0; i < count; i++)
                Array.set(records, i, simple.getConstructor(byte[].class).newInstance(new byte[] {'r'}));
            Class<?> compression = Class.forName("org.apache.kafka.common.compress.Compression");
            return bytes(type("MemoryRecords")
                .getMethod("withRecords", long.class, compression, int.class, records.getClass())
                .invoke(null, base, compression.getField("NONE").get(null), epoch, records));
        }

        /** A LeaderChangeMessage or VotersRecord at `base`, by the name of the method that builds it. */
        static ByteBuffer control(String builder, long base, int epoch, Object message) throws Exception {
            return bytes(type("MemoryRecords")
                .getMethod(builder, long.class, long.class, int.class, ByteBuffer.class, message.getClass())
                .invoke(null, base, 0L, epoch, ByteBuffer.allocate(512), message));
        }

        static void set(Object partition, ByteBuffer bytes) throws Exception {
            partition.getClass().getMethod("setRecords", type("BaseRecords")).invoke(partition, readable(bytes));
        }

        static Object get(Object partition) throws Exception {
            return partition.getClass().getMethod("records").invoke(partition);
        }
    }
}
