import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.header.EndTransactionRequestHeader;

/**
 * RocketMQ's own Java client at the end of a pipe: one command a line in, one answer a line out, both JSON objects.
 * An answer has "done", or "error" when the command failed. It ends with its input.
 *
 * Arguments: the name server's address, the broker's address and name, the topic, the number of its queues. Without
 * queues (0) nothing is created and nothing read: the front door of txbridge has nothing for a consumer.
 */
public final class PeerClient {
    private static final String SET_ASIDE = "TRANS_CHECK_MAX_TIME_TOPIC";
    /** The broker answers in milliseconds; RocketMQ's own default of 3 s is short for a machine that is loaded. */
    private static final int TIMEOUT_MS = 10_000;

    /** One transaction, by the body of its message. */
    private static final class Transaction {
        String group;
        String answer;
        List<String> checks;
        final AtomicInteger checked = new AtomicInteger();
        volatile SendResult stored;
        /** Answers to its SEND that get lost: the client itself sends again. */
        final AtomicInteger lost = new AtomicInteger();
        /** The last check: its coordinates are those of a new copy of the half message. */
        volatile MessageExt lastCheck;
    }

    private final Map<String, Transaction> transactions = new ConcurrentHashMap<>();
    private final Map<String, TransactionMQProducer> producers = new HashMap<>();
    /** Next offset to read and the bodies seen, for each queue. */
    private final Map<MessageQueue, Long> positions = new HashMap<>();
    private final Map<String, Map<String, Integer>> seen = new HashMap<>();
    private final Map<String, MessageExt> setAside = new HashMap<>();
    private final String names;
    private final String broker;
    private final String brokerName;
    private final String topic;
    private final int queues;
    private final DefaultMQPullConsumer reader = new DefaultMQPullConsumer("differential_reader");

    private PeerClient(String[] arguments) throws Exception {
        names = arguments[0];
        broker = arguments[1];
        brokerName = arguments[2];
        topic = arguments[3];
        queues = Integer.parseInt(arguments[4]);
        reader.setNamesrvAddr(names);
        reader.setInstanceName("reader");
        reader.start();
        if (queues > 0) {
            TopicConfig created = new TopicConfig(topic, queues, queues);
            api().getMQClientAPIImpl().createTopic(broker, "TBW102", created, TIMEOUT_MS);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Whatever a library prints must not look like an answer.
        System.setOut(System.err);
        PeerClient client = started(arguments);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("done", client.obey(JSON.parseObject(line)));
            } catch (Exception error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            answers.println(JSON.toJSONString(answer));
            answers.flush();
        }
        // Threads of producers that a failed run has left behind must not keep the process.
        System.exit(0);
    }

    private static PeerClient started(String[] arguments) {
        try {
            return new PeerClient(arguments);
        } catch (Exception error) {
            error.printStackTrace();
            // Threads of the client would keep the process.
            System.exit(1);
            throw new IllegalStateException(error);
        }
    }

    private Object obey(JSONObject command) throws Exception {
        switch (command.getString("command")) {
            case "join":
                join(command.getString("group"));
                return true;
            case "leave":
                producers.remove(command.getString("group")).shutdown();
                return true;
            case "send":
                send(command);
                return true;
            case "end":
                return end(command);
            case "resume":
                return resume(command.getString("body"));
            case "stored":
                SendResult stored = transactions.get(command.getString("body")).stored;
                return List.of(stored.getMsgId(), String.valueOf(placeOf(stored)), String.valueOf(stored.getQueueOffset()));
            case "state":
                return state();
            default:
                throw new IllegalArgumentException("no such command: " + command);
        }
    }

    private MQClientInstance api() {
        return reader.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
    }

    private void join(String group) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group, new RPCHook() {
            @Override
            public void doBeforeRequest(String address, RemotingCommand request) {
            }

            @Override
            public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
                if (request.getCode() == RequestCode.SEND_MESSAGE_V2
                    && transactions.get(text(request.getBody())).lost.getAndDecrement() > 0) {
                    throw new IllegalStateException("this answer gets lost, as the scenario wants it");
                }
            }
        });
        producer.setNamesrvAddr(names);
        // A client connection of its own: it goes away with the producer.
        producer.setInstanceName(group + System.nanoTime());
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object transaction) {
                return state(((Transaction) transaction).answer);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                Transaction transaction = transactions.get(body(message));
                transaction.lastCheck = message;
                int number = transaction.checked.getAndIncrement();
                return state(transaction.checks.get(Math.min(number, transaction.checks.size() - 1)));
            }
        });
        producer.getDefaultMQProducerImpl().registerSendMessageHook(new SendMessageHook() {
            @Override
            public String hookName() {
                return "coordinates";
            }

            @Override
            public void sendMessageBefore(SendMessageContext context) {
            }

            /** The result that the producer returns leaves out where the half message stands in the commit log. */
            @Override
            public void sendMessageAfter(SendMessageContext context) {
                if (context.getSendResult() != null) {
                    transactions.get(body(context.getMessage())).stored = context.getSendResult();
                }
            }
        });
        producer.start();
        // Otherwise its first heartbeat may come 30 s late, and the broker would know nobody to ask meanwhile: a defect
        // that depends on when a producer sends first, and would hide what is compared here.
        MQClientInstance own = producer.getDefaultMQProducerImpl().getMqClientFactory();
        long deadline = System.nanoTime() + TIMEOUT_MS * 1_000_000L;
        while (!own.updateTopicRouteInfoFromNameServer(topic) && own.findBrokerAddressInPublish(brokerName) == null) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the name server does not know the topic " + topic);
            }
            Thread.sleep(50);
        }
        while (!own.sendHeartbeatToAllBrokerWithLock()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the broker did not take the heartbeat of " + group);
            }
            Thread.sleep(50);
        }
        producers.put(group, producer);
    }

    private void send(JSONObject command) throws Exception {
        Transaction transaction = new Transaction();
        transaction.group = command.getString("group");
        transaction.answer = command.getString("answer");
        transaction.checks = command.getList("checks", String.class);
        transaction.lost.set(command.getIntValue("lost"));
        transactions.put(command.getString("body"), transaction);
        Message message = new Message(topic, command.getString("body").getBytes(StandardCharsets.UTF_8));
        if (command.get("immunity") != null) {
            message.putUserProperty(
                MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, command.getString("immunity"));
        }
        producers.get(transaction.group).sendMessageInTransaction(message, transaction);
    }

    /** END_TRANSACTION by hand, which the broker answers here: whether it took the decision for a good one. */
    private boolean end(JSONObject command) throws Exception {
        Transaction transaction = transactions.get(command.getString("body"));
        boolean again = command.getBooleanValue("again");
        EndTransactionRequestHeader header = new EndTransactionRequestHeader();
        header.setTopic(topic);
        header.setBrokerName(brokerName);
        header.setProducerGroup(command.getString("group"));
        header.setMsgId(transaction.stored.getMsgId());
        header.setTransactionId(transaction.stored.getTransactionId());
        header.setFromTransactionCheck(again);
        header.setCommitOrRollback(command.getString("decision").equals("commit")
            ? MessageSysFlag.TRANSACTION_COMMIT_TYPE : MessageSysFlag.TRANSACTION_ROLLBACK_TYPE);
        header.setTranStateTableOffset(
            again ? transaction.lastCheck.getQueueOffset() : transaction.stored.getQueueOffset());
        header.setCommitLogOffset(again ? transaction.lastCheck.getCommitLogOffset() : placeOf(transaction.stored));
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.END_TRANSACTION, header);
        RemotingCommand answer = api().getMQClientAPIImpl().getRemotingClient().invokeSync(broker, request, TIMEOUT_MS);
        System.err.println("END " + command + " answered " + answer.getCode() + " " + answer.getRemark());
        return answer.getCode() == ResponseCode.SUCCESS;
    }

    /** Where the half message stands in the commit log. */
    private static long placeOf(SendResult stored) throws Exception {
        return MessageDecoder.decodeMessageId(stored.getOffsetMsgId()).getOffset();
    }

    private boolean resume(String body) throws Exception {
        MessageExt copy = setAside.get(body);
        String id = MessageDecoder.createMessageId(copy.getStoreHost(), copy.getCommitLogOffset());
        return api().getMQClientAPIImpl().resumeCheckHalfMessage(broker, topic, id, TIMEOUT_MS);
    }

    private Map<String, Object> state() throws Exception {
        for (int queue = 0; queue < queues; queue++) {
            read(new MessageQueue(topic, brokerName, queue));
        }
        if (queues > 0) {
            read(new MessageQueue(SET_ASIDE, brokerName, 0));
        }
        Map<String, Integer> checks = new HashMap<>();
        transactions.forEach((body, transaction) -> checks.put(body, transaction.checked.get()));
        return Map.of(
            "copies", seen.getOrDefault(topic, Map.of()),
            "checks", checks,
            "set_aside", seen.getOrDefault(SET_ASIDE, Map.of()));
    }

    /** Read on, up to the present end of a queue. */
    private void read(MessageQueue queue) throws Exception {
        long end = reader.maxOffset(queue);
        long position = positions.getOrDefault(queue, 0L);
        while (position < end) {
            PullResult pulled = reader.pull(queue, "*", position, 32, TIMEOUT_MS);
            if (pulled.getMsgFoundList() != null) {
                for (MessageExt message : pulled.getMsgFoundList()) {
                    seen.computeIfAbsent(queue.getTopic(), ignored -> new HashMap<>()).merge(body(message), 1, Integer::sum);
                    if (queue.getTopic().equals(SET_ASIDE)) {
                        setAside.put(body(message), message);
                    }
                }
            }
            if (pulled.getNextBeginOffset() <= position) {
                throw new IllegalStateException("no way on at " + position + " of " + queue + ": " + pulled);
            }
            position = pulled.getNextBeginOffset();
            positions.put(queue, position);
        }
    }

    private static String body(Message message) {
        return text(message.getBody());
    }

    private static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    private static LocalTransactionState state(String answer) {
        switch (answer) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown":
                return LocalTransactionState.UNKNOW;
            default:
                throw new IllegalStateException("the application fails, as the scenario wants it");
        }
    }
}
