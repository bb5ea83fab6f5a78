package interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.RecallMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeader;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/** One broker on one directory, on loopback, without a name server. */
final class Broker {
    private static final String GROUP = "interop";
    private static final int WAIT_MS = 10_000;

    private final BrokerController controller;
    private final NettyServerConfig server;
    private NettyRemotingClient client;

    private Broker(BrokerController controller, NettyServerConfig server) {
        this.controller = controller;
        this.server = server;
    }

    /** Opens "dir" with the settings in "config" (of BrokerConfig and MessageStoreConfig). */
    static Broker open(JSONObject question) throws Exception {
        String directory = question.getString("dir");
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerIP1("127.0.0.1");
        broker.setBrokerIP2("127.0.0.1");
        broker.setRecallMessageEnable(true);
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(directory);
        store.setStorePathCommitLog(directory + "/commitlog");
        store.setHaListenPort(0);
        store.setTimerEnableCheckMetrics(false);
        Properties given = new Properties();
        for (Map.Entry<String, Object> one : question.getJSONObject("config").entrySet()) {
            given.setProperty(one.getKey(), String.valueOf(one.getValue()));
        }
        MixAll.properties2Object(given, broker);
        MixAll.properties2Object(given, store);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(0);
        BrokerController controller =
            new BrokerController(broker, server, new NettyClientConfig(), store);
        if (!controller.initialize()) {
            throw new IllegalStateException("refused: the broker does not initialize");
        }
        controller.start();
        return new Broker(controller, server);
    }

    /** For who measures it from inside. */
    BrokerController controller() {
        return controller;
    }

    JSONObject makeTopic(JSONObject question) {
        int queues = question.getIntValue("queues");
        controller.getTopicConfigManager()
            .updateTopicConfig(new TopicConfig(question.getString("topic"), queues, queues));
        return new JSONObject();
    }

    /** Sends each of "messages" over the network; "sent": what the broker answered to each. */
    JSONObject send(JSONObject question) throws Exception {
        JSONArray sent = new JSONArray();
        for (Object each : question.getJSONArray("messages")) {
            JSONObject one = (JSONObject) each;
            SendMessageRequestHeader header = new SendMessageRequestHeader();
            header.setProducerGroup(GROUP);
            header.setTopic(one.getString("topic"));
            header.setDefaultTopic("TBW102");
            header.setDefaultTopicQueueNums(4);
            header.setQueueId(one.getIntValue("queue_id"));
            header.setSysFlag(0);
            header.setBornTimestamp(System.currentTimeMillis());
            header.setFlag(one.getIntValue("flag"));
            header.setReconsumeTimes(0);
            Map<String, String> properties = new TreeMap<>();
            one.getJSONObject("properties").forEach((k, v) -> properties.put(k, String.valueOf(v)));
            header.setProperties(MessageDecoder.messageProperties2String(properties));
            byte[] body = Base64.getDecoder().decode(one.getString("body"));
            sent.add(ask(RequestCode.SEND_MESSAGE, header, body));
        }
        JSONObject answer = new JSONObject();
        answer.put("sent", sent);
        return answer;
    }

    JSONObject recall(JSONObject question) throws Exception {
        RecallMessageRequestHeader header = new RecallMessageRequestHeader();
        header.setProducerGroup(GROUP);
        header.setTopic(question.getString("topic"));
        header.setRecallHandle(question.getString("handle"));
        header.setBrokerName(controller.getBrokerConfig().getBrokerName());
        return ask(RequestCode.RECALL_MESSAGE, header, null);
    }

    private JSONObject ask(int code, CommandCustomHeader header, byte[] body) throws Exception {
        if (client == null) {
            client = new NettyRemotingClient(new NettyClientConfig());
            client.start();
        }
        RemotingCommand command = RemotingCommand.createRequestCommand(code, header);
        command.setBody(body);
        RemotingCommand got =
            client.invokeSync("127.0.0.1:" + server.getListenPort(), command, WAIT_MS);
        JSONObject answer = new JSONObject();
        answer.put("code", got.getCode());
        answer.put("remark", got.getRemark());
        if (got.getExtFields() != null) {
            answer.putAll(got.getExtFields());
        }
        return answer;
    }

    /** Every message of one queue, from "offset" on; those that cannot be read, by their offset. */
    JSONObject messages(JSONObject question) throws Exception {
        MessageStore store = controller.getMessageStore();
        String topic = question.getString("topic");
        int queue = question.getIntValue("queue_id");
        JSONArray messages = new JSONArray();
        JSONArray unreadable = new JSONArray();
        long offset = Math.max(question.getLongValue("offset"), store.getMinOffsetInQueue(topic, queue));
        long end = store.getMaxOffsetInQueue(topic, queue);
        while (offset < end) {
            GetMessageResult got = store.getMessage(GROUP, topic, queue, offset, 32, null);
            if (got == null || got.getStatus() != GetMessageStatus.FOUND) {
                unreadable.add(offset);
                offset = got == null ? offset + 1 : Math.max(offset + 1, got.getNextBeginOffset());
                continue;
            }
            addAll(messages, got.getMessageBufferList());
            offset = got.getNextBeginOffset();
            got.release();
        }
        JSONObject answer = new JSONObject();
        answer.put("messages", messages);
        answer.put("unreadable", unreadable);
        return answer;
    }

    /** What the index finds for a key. */
    JSONObject query(JSONObject question) throws Exception {
        JSONArray found = new JSONArray();
        for (Object key : question.getJSONArray("keys")) {
            JSONArray messages = new JSONArray();
            QueryMessageResult got = controller.getMessageStore()
                .queryMessage(question.getString("topic"), (String) key, 64, 0, Long.MAX_VALUE);
            addAll(messages, got.getMessageBufferList());
            got.release();
            found.add(messages);
        }
        JSONObject answer = new JSONObject();
        answer.put("found", found);
        return answer;
    }

    private static void addAll(JSONArray messages, List<ByteBuffer> buffers) {
        for (ByteBuffer buffer : new ArrayList<>(buffers)) {
            MessageExt message = MessageDecoder.decode(buffer);
            JSONObject one = new JSONObject();
            one.put("topic", message.getTopic());
            one.put("queue_id", message.getQueueId());
            one.put("queue_offset", message.getQueueOffset());
            one.put("store_ms", message.getStoreTimestamp());
            one.put("flag", message.getFlag());
            one.put("properties", new TreeMap<>(message.getProperties()));
            one.put("body", Base64.getEncoder().encodeToString(message.getBody()));
            messages.add(one);
        }
    }

    JSONObject commit(JSONObject question) {
        controller.getConsumerOffsetManager().commitOffset("127.0.0.1", question.getString("group"),
            question.getString("topic"), question.getIntValue("queue_id"),
            question.getLongValue("offset"));
        return new JSONObject();
    }

    JSONObject committed(JSONObject question) {
        JSONObject answer = new JSONObject();
        answer.put("offset", controller.getConsumerOffsetManager().queryOffset(
            question.getString("group"), question.getString("topic"),
            question.getIntValue("queue_id")));
        return answer;
    }

    JSONObject state() {
        TimerMessageStore timer = controller.getTimerMessageStore();
        JSONObject answer = new JSONObject();
        answer.put("now_ms", System.currentTimeMillis());
        answer.put("read_ms", timer.getCurrReadTimeMs());
        answer.put("waiting", timer.getAllCongestNum()); // as the wheel's slots count
        answer.put("unindexed", timer.getEnqueueBehindMessages());
        answer.put("dispatch_behind", controller.getMessageStore().dispatchBehindBytes());
        answer.put("counter", timer.getTimerMetrics().getDataVersion().getCounter().get());
        JSONObject counts = new JSONObject();
        timer.getTimerMetrics().getTimingCount()
            .forEach((topic, metric) -> counts.put(topic, metric.getCount().get()));
        answer.put("counts", counts);
        return answer;
    }

    void close() {
        if (client != null) {
            client.shutdown();
        }
        controller.shutdown();
    }
}
