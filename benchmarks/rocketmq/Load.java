import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The load of bench_rocketmq with the official client: ADDRESS N BODY LEAD_MS RATE SECONDS.
 *
 * <p>Each measured phase is a line `begin NAME`, and at its end `end NAME SECONDS CPU_SECONDS`; the
 * last line is `late` with how late each message was, in ms. The first round of all phases warms up.
 */
public final class Load {
    private static final String TOPIC = "delay";
    private static final int IN_FLIGHT = 64;
    private static final int READERS = 4;
    private static final int BATCH = 32;
    private static final long PATIENCE_MS = 120_000;

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final AtomicReference<Throwable> problem = new AtomicReference<>();
    private final SimpleConsumer consumer;
    private final Producer producer;
    private final int body;

    private Load(String address, int body) throws Exception {
        this.body = body;
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(address).enableSsl(false).build();
        producer = provider.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(TOPIC).build();
        consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("g").setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(TOPIC, FilterExpression.SUB_ALL))
            .build();
    }

    public static void main(String[] args) throws Exception {
        int n = Integer.parseInt(args[1]);
        long lead = Long.parseLong(args[3]);
        int rate = Integer.parseInt(args[4]);
        double seconds = Double.parseDouble(args[5]);
        Load load = new Load(args[0], Integer.parseInt(args[2]));
        load.inTurn("warm ", Math.min(n, 2000), 2000);
        load.paced("warm ", rate, Math.min(1, seconds));
        load.inTurn("", n, lead);
        long[] late = load.paced("", rate, seconds);
        StringBuilder line = new StringBuilder("late");
        Arrays.stream(late).forEach(ms -> line.append(' ').append(ms));
        System.out.println(line);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private interface Phase {
        void run() throws Exception;
    }

    private static double cpuSeconds() {
        return ((com.sun.management.OperatingSystemMXBean)
            java.lang.management.ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime() / 1e9;
    }

    private void measured(String name, Phase phase) throws Exception {
        System.out.println("begin " + name);
        System.out.flush();
        double cpu = cpuSeconds();
        long began = System.nanoTime();
        phase.run();
        double took = (System.nanoTime() - began) / 1e9;
        if (problem.get() != null) {
            throw new IllegalStateException(problem.get());
        }
        System.out.println("end " + name + " " + took + " " + (cpuSeconds() - cpu));
        System.out.flush();
    }

    /** Send all, let all become due, receive and acknowledge all. */
    private void inTurn(String kind, int n, long lead) throws Exception {
        measured(kind + "send", () -> send(n, Double.POSITIVE_INFINITY, lead, lead));
        Thread.sleep(lead + 2000);
        Reading reading = new Reading(n);
        measured(kind + "receive", reading::finish);
        reading.end();
    }

    /** A steady load, received at the same time; how late each message was. */
    private long[] paced(String kind, int rate, double seconds) throws Exception {
        int n = (int) (rate * seconds);
        Reading reading = new Reading(n);
        measured(kind + "paced", () -> {
            Thread sender = new Thread(() -> guarded(() -> send(n, rate, 1000, 3000)));
            sender.start();
            reading.finish();
            sender.join();
        });
        reading.end();
        return reading.late;
    }

    private void guarded(Phase phase) {
        try {
            phase.run();
        } catch (Throwable error) {
            problem.compareAndSet(null, error);
        }
    }

    private void send(int n, double rate, long from, long to) throws Exception {
        Semaphore free = new Semaphore(IN_FLIGHT);
        long began = System.nanoTime();
        for (int row = 0; row < n && problem.get() == null; row++) {
            while ((System.nanoTime() - began) / 1e9 * rate < row) {
                Thread.sleep(1);
            }
            long due = System.currentTimeMillis() + from + row * 7919L % (to - from + 1);
            byte[] bytes = new byte[body];
            ByteBuffer.wrap(bytes).putInt(row).putLong(due);
            free.acquire();
            producer.sendAsync(provider.newMessageBuilder().setTopic(TOPIC).setBody(bytes)
                .setDeliveryTimestamp(due).build()).whenComplete((receipt, error) -> {
                    free.release();
                    if (error != null) {
                        problem.compareAndSet(null, error);
                    }
                });
        }
        free.acquire(IN_FLIGHT);
    }

    /** Threads that receive and acknowledge rows, of which each must come once. */
    private final class Reading {
        final long[] late;
        private final BitSet came = new BitSet();
        private final CountDownLatch left;
        private final List<Thread> readers = new ArrayList<>();

        Reading(int n) {
            late = new long[n];
            left = new CountDownLatch(n);
        }

        /** Begin, and return when all were acknowledged; a thread may still wait for messages. */
        void finish() throws Exception {
            for (int k = 0; k < READERS; k++) {
                Thread reader = new Thread(() -> guarded(() -> {
                    while (left.getCount() > 0 && problem.get() == null) {
                        take();
                    }
                }));
                reader.start();
                readers.add(reader);
            }
            long giveUp = System.currentTimeMillis() + PATIENCE_MS;
            while (!left.await(100, TimeUnit.MILLISECONDS) && problem.get() == null) {
                if (System.currentTimeMillis() > giveUp) {
                    throw new IllegalStateException(left.getCount() + " messages did not come");
                }
            }
        }

        void end() throws InterruptedException {
            for (Thread reader : readers) {
                reader.join();
            }
        }

        private void take() throws Exception {
            List<CompletableFuture<Void>> acks = new ArrayList<>();
            for (MessageView view : consumer.receive(BATCH, Duration.ofSeconds(60))) {
                long now = System.currentTimeMillis();
                ByteBuffer bytes = view.getBody();
                int row = bytes.getInt();
                synchronized (came) {
                    if (came.get(row)) {
                        throw new IllegalStateException("row " + row + " came again");
                    }
                    came.set(row);
                }
                late[row] = now - bytes.getLong();
                acks.add(consumer.ackAsync(view));
            }
            for (CompletableFuture<Void> ack : acks) {
                ack.get();
                left.countDown();
            }
        }
    }
}
