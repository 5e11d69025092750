package golden.five;

import com.alibaba.fastjson.serializer.SerializerFeature;
import golden.Golden;
import io.netty.channel.embedded.EmbeddedChannel;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.routeinfo.RouteInfoManager;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.BrokerMemberGroup;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.TopicList;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;

/** What Apache's own route table answers after two brokers, one with a slave, have registered. */
final class Routes {
    private final Golden golden;

    Routes(Golden golden) {
        this.golden = golden;
    }

    void record() throws Exception {
        RouteInfoManager table = new RouteInfoManager(new NamesrvConfig(), null);
        register(table, "broker-a", 0, "127.0.0.1:10911", null);
        register(table, "broker-a", 1, "127.0.0.1:10921", null);
        register(table, "broker-\u00e4", 0, "127.0.0.1:10931", "zone-1");

        TopicRouteData route = table.pickupTopicRouteData("TopicTest");
        record("route", route);
        standard("route-standard", route);
        route.setOrderTopicConf("broker-a:8;broker-\u00e4:8");
        record("route-ordered", route);
        standard("route-ordered-standard", route);

        ClusterInfo cluster = table.getAllClusterInfo();
        record("cluster-info", cluster);
        TopicList topics = table.getAllTopicList();
        record("all-topics", topics);
        BrokerMemberGroup members = table.getBrokerMemberGroup("DefaultCluster", "broker-a");
        record("member-group-of-name-server", members);
    }

    private static void register(RouteInfoManager table, String name, long id, String address, String zone) {
        table.registerBroker("DefaultCluster", address, name, id, "127.0.0.1:10912", zone, 120000L, false,
            Bodies.topics(), new ArrayList<>(List.of()), new EmbeddedChannel());
    }

    private void record(String name, RemotingSerializable body) {
        golden.add("body", name, body.encode(), "type", body.getClass().getSimpleName(), "value", Golden.describe(body));
    }

    private void standard(String name, RemotingSerializable body) {
        byte[] bytes = body.encode(SerializerFeature.BrowserCompatible, SerializerFeature.QuoteFieldNames,
            SerializerFeature.SkipTransientField, SerializerFeature.MapSortField);
        golden.add("body-standard", name, bytes, "type", body.getClass().getSimpleName(), "value", Golden.describe(body));
    }
}
