package interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Brokers in this process, driven from outside: a line of JSON in, a line of JSON out.
 *
 * <p>A question names what to "do" and which "broker" by a name of the asker's; several run at once,
 * each on its own directory. An answer has what was asked for, or "error". The process ends with its
 * input, without closing anything: so does a kill.
 */
public final class Main {
    private final Map<String, Broker> brokers = new HashMap<>();

    private Main() { }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // RocketMQ's logging speaks there, too
        BufferedReader questions =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Main main = new Main();
        for (String line; (line = questions.readLine()) != null; ) {
            JSONObject answer;
            try {
                answer = main.answer(JSON.parseObject(line));
            } catch (Throwable problem) {
                problem.printStackTrace();
                answer = new JSONObject();
                answer.put("error", problem.toString());
            }
            answers.write((answer.toString(JSONWriter.Feature.WriteNulls) + "\n")
                .getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private JSONObject answer(JSONObject question) throws Exception {
        String name = question.getString("broker");
        if ("open".equals(question.getString("do"))) {
            Broker opened = Broker.open(question);
            brokers.put(name, opened);
            return new JSONObject();
        }
        if ("close".equals(question.getString("do"))) {
            return close(question.getJSONArray("brokers").toJavaList(String.class));
        }
        Broker broker = brokers.get(name);
        if (broker == null) {
            throw new IllegalArgumentException("no broker is open under the name " + name);
        }
        switch (question.getString("do")) {
            case "topic": return broker.makeTopic(question);
            case "send": return broker.send(question);
            case "recall": return broker.recall(question);
            case "messages": return broker.messages(question);
            case "query": return broker.query(question);
            case "commit": return broker.commit(question);
            case "committed": return broker.committed(question);
            case "state": return broker.state();
            default: throw new IllegalArgumentException("cannot do " + question.getString("do"));
        }
    }

    /** Side by side: a shutdown is twelve seconds of waiting. */
    private JSONObject close(List<String> names) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (String name : names) {
            Thread thread = new Thread(brokers.remove(name)::close);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return new JSONObject();
    }
}
