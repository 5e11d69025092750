package golden.five;

import golden.Golden;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Who gets which queue: every strategy, for several numbers of queues and clients. */
final class Allocations {
    private static final String[] BROKERS = {"broker-a", "room-1@broker-b", "room-2@broker-c", "room-3@", "a@b@c"};
    private static final String[] CLIENTS = {"room-1-10.0.0.1@4711", "room-1-10.0.0.2@DEFAULT", "room-2-10.0.0.3@DEFAULT", "room-2-10.0.0.3@unit",
        "room-2-10.0.0.9@x", "room-1-[::1]@8", "room-1-host@1"};
    private final Golden golden;

    Allocations(Golden golden) {
        this.golden = golden;
    }

    void record() {
        AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
        rooms.setConsumeridcs(Set.of("room-1", "room-3", "a"));
        AllocateMachineRoomNearby.MachineRoomResolver resolver = new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override
            public String brokerDeployIn(MessageQueue queue) {
                return queue.getBrokerName().contains("@") ? queue.getBrokerName().split("@")[0] : "nowhere";
            }

            @Override
            public String consumerDeployIn(String client) {
                return client.substring(0, 6);
            }
        };
        for (AllocateMessageQueueStrategy strategy : List.of(new AllocateMessageQueueAveragely(), new AllocateMessageQueueAveragelyByCircle(),
            new AllocateMessageQueueConsistentHash(), rooms, new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), resolver))) {
            for (int each : new int[] {1, 2, 3, 8}) {
                for (int count : new int[] {1, 2, 3, 5, 7}) {
                    record(strategy, each, count);
                }
            }
        }
    }

    private void record(AllocateMessageQueueStrategy strategy, int each, int count) {
        List<MessageQueue> queues = new ArrayList<>();
        for (String broker : BROKERS) {
            for (int i = 0; i < each; i++) {
                queues.add(new MessageQueue("Orders", broker, i));
            }
        }
        Collections.sort(queues);
        List<String> clients = new ArrayList<>(Arrays.asList(CLIENTS).subList(0, count));
        Collections.sort(clients);
        Map<String, Object> shares = new LinkedHashMap<>();
        for (String client : clients) {
            List<Object> share = new ArrayList<>();
            for (MessageQueue queue : strategy.allocate("group", client, queues, clients)) {
                share.add(queue.getBrokerName() + ":" + queue.getQueueId());
            }
            shares.put(client, share);
        }
        golden.fact("allocation", strategy.getName() + " " + each + " " + count, "strategy", strategy.getName(), "queuesEach", each, "shares", shares);
    }
}
