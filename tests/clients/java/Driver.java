import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Makes the calls of client_driver.py with the official client: a line each, of fields with tabs. */
public final class Driver {
    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Map<String, Producer> producers = new HashMap<>();
    private final Map<String, SimpleConsumer> consumers = new HashMap<>();
    private final List<MessageView> views = new ArrayList<>();
    private final List<SimpleConsumer> owners = new ArrayList<>();
    private final List<PushConsumer> pushes = new ArrayList<>();
    private ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        Driver driver = new Driver();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            Map<String, String> given = new HashMap<>();
            String[] words = line.split("\t");
            for (int k = 1; k < words.length; k++) {
                String[] pair = words[k].split("=", 2);
                given.put(pair[0], pair[1]);
            }
            try {
                driver.run(words[0], given);
            } catch (Throwable error) {
                Throwable cause = error;
                while (!(cause instanceof ClientException) && cause.getCause() != null) {
                    cause = cause.getCause();
                }
                int code = cause instanceof ClientException ? codeOf((ClientException) cause) : 0;
                say("error", "code", code, "text", String.valueOf(cause));
            }
        }
        System.exit(0);
    }

    private static int codeOf(ClientException error) {
        java.util.regex.Matcher found =
            java.util.regex.Pattern.compile("response-code=(\\d+)").matcher(String.valueOf(error));
        return found.find() ? Integer.parseInt(found.group(1)) : 0;
    }

    private static synchronized void say(String verb, Object... fields) {
        StringBuilder line = new StringBuilder(verb);
        for (int k = 0; k < fields.length; k += 2) {
            String value = String.valueOf(fields[k + 1]).replaceAll("\\s+", " ");
            line.append('\t').append(fields[k]).append('=').append(value);
        }
        System.out.println(line);
        System.out.flush();
    }

    private void run(String verb, Map<String, String> given) throws Throwable {
        switch (verb) {
            case "configure": configure(given); say("ok"); break;
            case "send": send(given); break;
            case "burst": burst(given); break;
            case "recall": recall(given); say("ok"); break;
            case "check": producer(given.get("topic")); say("ok"); break;
            case "transact": transact(given); say("ok"); break;
            case "receive": receive(given); break;
            case "ack": owners.get(number(given)).ack(views.get(number(given))); say("ok"); break;
            case "change":
                owners.get(number(given)).changeInvisibleDuration(
                    views.get(number(given)), Duration.ofMillis(Long.parseLong(given.get("lease_ms"))));
                say("ok");
                break;
            case "push": push(given); say("ok"); break;
            case "close": close(); say("ok"); break;
            default: throw new IllegalArgumentException(verb);
        }
    }

    private static int number(Map<String, String> given) {
        return Integer.parseInt(given.get("n"));
    }

    private void configure(Map<String, String> given) {
        ClientConfigurationBuilder made = ClientConfiguration.newBuilder()
            .setEndpoints(given.get("address")).enableSsl(given.get("tls").equals("1"));
        if (given.containsKey("key")) {
            made.setCredentialProvider(
                new StaticSessionCredentialsProvider(given.get("key"), given.get("secret")));
        }
        configuration = made.build();
    }

    private Producer producer(String topic) throws ClientException {
        Producer found = producers.get(topic);
        if (found == null) {
            found = provider.newProducerBuilder().setClientConfiguration(configuration)
                .setTransactionChecker(Driver::check).setTopics(topic).build();
            producers.put(topic, found);
        }
        return found;
    }

    private Message message(Map<String, String> given) throws Throwable {
        MessageBuilder made = provider.newMessageBuilder().setTopic(given.get("topic"))
            .setBody(given.get("body").getBytes(StandardCharsets.UTF_8));
        if (given.containsKey("delay_ms")) {
            made.setDeliveryTimestamp(
                System.currentTimeMillis() + Long.parseLong(given.get("delay_ms")));
        }
        if (given.containsKey("tag")) {
            made.setTag(given.get("tag"));
        }
        if (given.containsKey("keys")) {
            made.setKeys(given.get("keys").split(","));
        }
        if (given.containsKey("properties")) {
            for (String pair : given.get("properties").split(",")) {
                made.addProperty(pair.split(":")[0], pair.split(":")[1]);
            }
        }
        if (given.containsKey("group")) {
            made.setMessageGroup(given.get("group"));
        }
        if (given.containsKey("priority")) { // since 5.2.0
            MessageBuilder.class.getMethod("setPriority", int.class)
                .invoke(made, Integer.parseInt(given.get("priority")));
        }
        return made.build();
    }

    private void send(Map<String, String> given) throws Throwable {
        SendReceipt receipt = producer(given.get("topic")).send(message(given));
        say("ok", "id", receipt.getMessageId(), "handle", handle(receipt));
    }

    private static String handle(SendReceipt receipt) throws ReflectiveOperationException {
        try {
            Object found = SendReceipt.class.getMethod("getRecallHandle").invoke(receipt);
            return found == null ? "" : (String) found;
        } catch (NoSuchMethodException error) { // before 5.0.8
            return "";
        }
    }

    /** Commits messages whose body begins with "keep", and rolls back others. */
    private static TransactionResolution check(MessageView view) {
        String body = StandardCharsets.UTF_8.decode(view.getBody()).toString();
        say("checked", "body", body, "id", view.getMessageId());
        return body.startsWith("keep") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    }

    private void transact(Map<String, String> given) throws Throwable {
        Producer producer = producer(given.get("topic"));
        Transaction transaction = producer.beginTransaction();
        producer.send(message(given), transaction);
        if (given.get("end").equals("commit")) {
            transaction.commit();
        } else if (given.get("end").equals("rollback")) {
            transaction.rollback();
        }
    }

    private void recall(Map<String, String> given) throws Throwable {
        try {
            Producer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer(given.get("topic")), given.get("topic"), given.get("handle"));
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }

    /** Sends many delayed messages, 64 in flight. After a failure, which the client did not mend by
     * its own attempts, it waits for the next server; that message is not sent again. */
    private void burst(Map<String, String> given) throws Throwable {
        int count = Integer.parseInt(given.get("count"));
        int spread = Integer.parseInt(given.get("spread_ms"));
        Semaphore inFlight = new Semaphore(64);
        AtomicInteger stored = new AtomicInteger();
        java.util.concurrent.atomic.AtomicBoolean failed =
            new java.util.concurrent.atomic.AtomicBoolean();
        Producer producer = producer(given.get("topic"));
        for (int k = 0; k < count; k++) {
            inFlight.acquire();
            if (failed.getAndSet(false)) {
                Thread.sleep(1000);
            }
            Map<String, String> one = new HashMap<>(given);
            one.put("body", given.get("body") + k);
            one.put("delay_ms", String.valueOf(Long.parseLong(given.get("delay_ms")) + k % spread));
            CompletableFuture<SendReceipt> sent = producer.sendAsync(message(one));
            final String body = one.get("body");
            sent.whenComplete((receipt, error) -> {
                inFlight.release();
                if (error == null) {
                    stored.incrementAndGet();
                    say("stored", "body", body);
                } else {
                    failed.set(true);
                }
            });
        }
        inFlight.acquire(64);
        say("ok", "stored", stored.get());
    }

    private static Map<String, FilterExpression> filters(Map<String, String> given) {
        FilterExpression filter = given.containsKey("sql")
            ? new FilterExpression(given.get("sql"), FilterExpressionType.SQL92)
            : new FilterExpression(given.getOrDefault("tag", "*"), FilterExpressionType.TAG);
        return Collections.singletonMap(given.get("topic"), filter);
    }

    private void receive(Map<String, String> given) throws Throwable {
        String name = given.get("topic") + " " + given.get("group") + " " + given.get("wait_ms");
        SimpleConsumer consumer = consumers.get(name);
        if (consumer == null) {
            consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(given.get("group"))
                .setAwaitDuration(Duration.ofMillis(Long.parseLong(given.get("wait_ms"))))
                .setSubscriptionExpressions(filters(given)).build();
            consumers.put(name, consumer);
        }
        List<MessageView> found = consumer.receive(Integer.parseInt(given.get("count")),
            Duration.ofMillis(Long.parseLong(given.get("lease_ms"))));
        for (MessageView one : found) {
            views.add(one);
            owners.add(consumer);
            show("message", views.size() - 1, one);
        }
        say("ok", "count", found.size());
    }

    private static void show(String verb, int n, MessageView one) {
        List<String> properties = new ArrayList<>();
        one.getProperties().forEach((name, value) -> properties.add(name + ":" + value));
        say(verb, "n", n, "id", one.getMessageId(),
            "body", StandardCharsets.UTF_8.decode(one.getBody()), "tag", one.getTag().orElse(""),
            "keys", String.join(",", one.getKeys()), "properties", String.join(",", properties),
            "attempt", one.getDeliveryAttempt(), "at_ms", System.currentTimeMillis(),
            "due_ms", one.getDeliveryTimestamp().orElse(0L));
    }

    private void push(Map<String, String> given) throws Throwable {
        int failures = Integer.parseInt(given.getOrDefault("failures", "0"));
        long handling = Long.parseLong(given.getOrDefault("handling_ms", "0"));
        pushes.add(provider.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(given.get("group")).setSubscriptionExpressions(filters(given))
            .setMessageListener(view -> {
                show("pushed", -1, view);
                try {
                    Thread.sleep(handling);
                } catch (InterruptedException error) {
                    return ConsumeResult.FAILURE;
                }
                boolean fails = view.getDeliveryAttempt() <= failures;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build());
    }

    private void close() throws Exception {
        for (PushConsumer one : pushes) {
            one.close();
        }
        for (SimpleConsumer one : consumers.values()) {
            one.close();
        }
        for (Producer one : producers.values()) {
            one.close();
        }
    }
}
