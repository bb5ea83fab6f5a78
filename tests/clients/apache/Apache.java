import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.proxy.ProxyStartup;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Starts a name server, and a proxy with its broker; says "ready" when they know the topics. */
public final class Apache {
    /** Takes the three configurations, the broker's address, and types of messages. */
    public static void main(String[] given) throws Exception {
        NamesrvController names = NamesrvStartup.main0(new String[] {"-c", given[0]});
        ProxyStartup.main(new String[] {"-pm", "LOCAL", "-bc", given[1], "-pc", given[2]});
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr("127.0.0.1:" + names.getNettyServerConfig().getListenPort());
        admin.start();
        for (int k = 4; k < given.length; k++) {
            TopicConfig topic = new TopicConfig(given[k]);
            topic.getAttributes().put("+message.type", given[k].toUpperCase());
            // The broker registers a topic that is set, and others once in ten seconds.
            while (names.getRouteInfoManager().pickupTopicRouteData(given[k]) == null) {
                admin.createAndUpdateTopicConfig(given[3], topic);
                Thread.sleep(100);
            }
        }
        System.out.println("ready");
    }
}
