package interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Random;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/**
 * RocketMQ's own timer, measured inside its own process: no network, one thread puts and one takes.
 *
 * <p>Started by benchmarks/peers/by_rocketmq.py with one argument, a line of JSON. Each phase is
 * announced by a line of JSON on standard output and goes on when a line comes in.
 */
public final class Bench {
    private static final String TOPIC = "bench";
    private static final String WARM = "warm";
    private static final int BODY_LENGTH_AT = 84; // of a record with IPv4 hosts
    private static final int A_PULL = 10_000;
    private static final long PATIENCE_MS = 120_000;

    private final JSONObject given;
    private final PrintStream out;
    private final BufferedReader in;
    private final BrokerController controller;
    private final MessageStore store;
    private final TimerMessageStore timer;
    private final SocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
    private long seen; // in the queue that is consumed

    private Bench(JSONObject given, PrintStream out, BrokerController controller) {
        this.given = given;
        this.out = out;
        this.in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        this.controller = controller;
        this.store = controller.getMessageStore();
        this.timer = controller.getTimerMessageStore();
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // RocketMQ's logging speaks there, too
        JSONObject given = JSON.parseObject(args[0]);
        Broker broker = Broker.open(given);
        for (String topic : new String[] {WARM, TOPIC}) {
            JSONObject wanted = new JSONObject();
            wanted.put("topic", topic);
            wanted.put("queues", 1);
            broker.makeTopic(wanted);
        }
        int status = 0;
        try {
            Bench bench = new Bench(given, out, broker.controller());
            if ("paced".equals(given.getString("mode"))) {
                bench.paced();
            } else {
                bench.phases();
            }
        } catch (Throwable problem) {
            problem.printStackTrace();
            JSONObject answer = new JSONObject();
            answer.put("error", problem.toString());
            out.println(answer);
            status = 1;
        }
        out.flush();
        Runtime.getRuntime().halt(status); // a shutdown is twelve seconds of waiting
    }

    /** Warm up; then put all, wait until it is indexed and due, let it be delivered, take it. */
    private void phases() throws Exception {
        byte[] bodies = Files.readAllBytes(Path.of(given.getString("bodies")));
        ByteBuffer dues = ByteBuffer.wrap(Files.readAllBytes(Path.of(given.getString("dues"))))
            .order(ByteOrder.LITTLE_ENDIAN);
        int n = given.getIntValue("n");
        int size = given.getIntValue("body");
        int batch = given.getIntValue("batch");
        warmUp(given.getIntValue("warm"), size);
        ask("ready", new JSONObject());

        holdDelivery(true);
        long lead = given.getLongValue("lead_ms");
        long base = System.currentTimeMillis() + lead;
        long[] laps = new long[(n + batch - 1) / batch];
        long began = System.nanoTime();
        for (int row = 0, lap = 0; row < n; lap++) {
            long from = System.nanoTime();
            for (int end = Math.min(n, row + batch); row < end; row++) {
                byte[] body = Arrays.copyOfRange(bodies, row * size, (row + 1) * size);
                put(TOPIC, body, base + dues.getLong(row * Long.BYTES));
            }
            laps[lap] = System.nanoTime() - from;
        }
        await(20, () -> timer.getEnqueueBehindMessages() == 0 // read, and put into the wheel:
            && timer.getAllCongestNum() + store.getMaxOffsetInQueue(TOPIC, 0) >= n);
        long scheduled = System.nanoTime();
        JSONObject pending = new JSONObject();
        pending.put("schedule_s", (scheduled - began) / 1e9);
        pending.put("laps_ns", laps);
        pending.put("in_time", System.currentTimeMillis() < base
            && store.getMaxOffsetInQueue(TOPIC, 0) == 0); // what is due goes past the wheel
        ask("pending", pending);

        Thread.sleep(Math.max(0, base + given.getLongValue("horizon_ms") + 1000
            - System.currentTimeMillis()));
        holdDelivery(false);
        long released = System.nanoTime();
        await(1, () -> store.getMaxOffsetInQueue(TOPIC, 0) > 0);
        long first = System.nanoTime();
        byte[] found = new byte[n * size];
        seen = 0;
        for (int taken = 0; taken < n; ) {
            int count = take(TOPIC, found, taken * size, size);
            taken += count;
            if (count == 0) {
                Thread.sleep(1);
            }
        }
        long ended = System.nanoTime();
        Thread.sleep(200); // whatever came twice would be there, too
        JSONObject done = new JSONObject();
        done.put("deliver_s", (ended - first) / 1e9);
        done.put("woke_s", (first - released) / 1e9);
        done.put("in_queue", store.getMaxOffsetInQueue(TOPIC, 0));
        try (OutputStream file = new BufferedOutputStream(
                Files.newOutputStream(Path.of(given.getString("found"))), 1 << 20)) {
            file.write(found);
        }
        tell("done", done);
    }

    /** A steady load; how late each message is when it was taken. */
    private void paced() throws Exception {
        int rate = given.getIntValue("rate");
        int size = given.getIntValue("body");
        int total = (int) (rate * given.getDoubleValue("seconds"));
        int from = given.getIntValue("ahead_from_ms");
        int to = given.getIntValue("ahead_to_ms");
        warmUp(given.getIntValue("warm"), size);
        ask("ready", new JSONObject());
        Thread producer = new Thread(() -> {
            Random random = new Random(20131);
            long began = System.nanoTime();
            for (int row = 0; row < total; ) {
                int until = (int) Math.min(total, (System.nanoTime() - began) / 1e9 * rate);
                for (; row < until; row++) {
                    byte[] body = new byte[size];
                    random.nextBytes(body);
                    long due = System.currentTimeMillis() + from + random.nextInt(to - from + 1);
                    ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN).putLong(row).putLong(due);
                    put(TOPIC, body, due);
                }
                pause(1);
            }
        });
        producer.start();
        long[] late = new long[total];
        BitSet came = new BitSet(total);
        byte[] found = new byte[A_PULL * size];
        ByteBuffer view = ByteBuffer.wrap(found).order(ByteOrder.LITTLE_ENDIAN);
        seen = 0;
        long giveUp = System.currentTimeMillis() + PATIENCE_MS;
        for (int taken = 0; taken < total; ) {
            int count = take(TOPIC, found, 0, size);
            long now = System.currentTimeMillis();
            for (int at = 0; at < count; at++) {
                long row = view.getLong(at * size);
                if (row < 0 || row >= total || came.get((int) row)) {
                    throw new IllegalStateException("row " + row + " came again, or is none");
                }
                came.set((int) row);
                late[taken++] = now - view.getLong(at * size + Long.BYTES);
            }
            if (count == 0) {
                Thread.sleep(1);
                if (now > giveUp) {
                    throw new IllegalStateException(total - taken + " did not come out in time");
                }
            }
        }
        producer.join();
        Arrays.sort(late);
        long[] curve = new long[1001];
        for (int at = 0; at < curve.length; at++) {
            curve[at] = late[(int) ((long) at * (total - 1) / (curve.length - 1))];
        }
        JSONObject done = new JSONObject();
        done.put("curve_ms", curve);
        done.put("n", total);
        tell("done", done);
    }

    /** Compiled code and touched memory first: as many as given, due within a second. */
    private void warmUp(int count, int size) throws Exception {
        long base = System.currentTimeMillis() + 1500;
        for (int row = 0; row < count; row++) {
            put(WARM, new byte[size], base + row % 1000);
        }
        byte[] found = new byte[A_PULL * size];
        seen = 0;
        long giveUp = System.currentTimeMillis() + PATIENCE_MS;
        while (seen < count) {
            take(WARM, found, 0, size);
            Thread.sleep(1);
            if (System.currentTimeMillis() > giveUp) {
                throw new IllegalStateException("the warm-up did not come out");
            }
        }
    }

    private void put(String topic, byte[] body, long dueMs) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(0);
        message.setBody(body);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(host);
        message.setStoreHost(host);
        MessageAccessor.putProperty(
            message, MessageConst.PROPERTY_TIMER_DELIVER_MS, Long.toString(dueMs));
        MessageClientIDSetter.setUniqID(message);
        message.setPropertiesString(
            MessageDecoder.messageProperties2String(message.getProperties()));
        for (int tries = 0; ; tries++) {
            PutMessageResult result = store.putMessage(message);
            if (result.isOk()) {
                return;
            }
            if (tries == 10_000) {
                throw new IllegalStateException("refused: " + result);
            }
            pause(1);
        }
    }

    /** What is there from `seen` on, its bodies side by side from `at` on; how many. */
    private int take(String topic, byte[] found, int at, int size) {
        GetMessageResult got = store.getMessage("bench", topic, 0, seen, A_PULL, null);
        if (got == null || got.getStatus() != GetMessageStatus.FOUND) {
            if (got != null) {
                got.release();
            }
            return 0;
        }
        int count = 0;
        for (ByteBuffer record : got.getMessageBufferList()) {
            int length = record.getInt(record.position() + BODY_LENGTH_AT);
            if (length != size) {
                throw new IllegalStateException("a body of " + length + " bytes");
            }
            record.position(record.position() + BODY_LENGTH_AT + Integer.BYTES);
            record.get(found, at + count * size, size);
            count++;
        }
        seen = got.getNextBeginOffset();
        got.release();
        return count;
    }

    /** Its own switch: it has a getter and no setter. */
    private void holdDelivery(boolean hold) throws ReflectiveOperationException {
        Field field = MessageStoreConfig.class.getDeclaredField("timerStopDequeue");
        field.setAccessible(true);
        field.setBoolean(controller.getMessageStoreConfig(), hold);
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void await(long everyMs, Condition condition) throws Exception {
        long giveUp = System.currentTimeMillis() + PATIENCE_MS;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > giveUp) {
                throw new IllegalStateException("waited too long");
            }
            Thread.sleep(everyMs);
        }
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }

    private void tell(String phase, JSONObject answer) {
        answer.put("phase", phase);
        out.println(answer);
        out.flush();
    }

    private void ask(String phase, JSONObject answer) throws Exception {
        tell(phase, answer);
        if (in.readLine() == null) {
            Runtime.getRuntime().halt(0); // whoever asked is gone
        }
    }
}
