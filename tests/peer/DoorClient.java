import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's own Java client, of any version, at the end of a pipe: one command a line in, one answer a line out. Fields
 * are separated by tabs. An answer begins with "done" or "error". It ends with its input.
 *
 * Arguments: the addresses of the doors as name servers, the producer group, and an AccessKey with its secret if the
 * doors demand one. Of the system properties door.namespace, door.namespaceV2, door.instance, door.topic (for the
 * constructor of 5.2 and later) and door.trace (a topic for message traces; empty for RocketMQ's own), the producer gets
 * those that are set. With door.old a push consumer starts before it, at this name server.
 */
public final class DoorClient {
    /** For a machine that is loaded; RocketMQ's own default is 3 s. */
    private static final int TIMEOUT_MS = 20_000;

    private static final Map<String, String[]> ANSWERS = new ConcurrentHashMap<>();
    private static final Map<String, AtomicInteger> ASKED = new ConcurrentHashMap<>();
    private static final ConcurrentLinkedQueue<String> CHECKS = new ConcurrentLinkedQueue<>();
    private static final ConcurrentLinkedQueue<String> HEARD = new ConcurrentLinkedQueue<>();
    private static final ConcurrentLinkedQueue<String> SENT = new ConcurrentLinkedQueue<>();
    private static String names;
    private static TransactionMQProducer producer;

    private DoorClient() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Whatever a library prints must not look like an answer.
        System.setOut(System.err);
        names = arguments[0];
        RPCHook signer = arguments.length > 3 ? signer(arguments[2], arguments[3]) : null;
        String trace = System.getProperty("door.trace");
        String namespace = System.getProperty("door.namespace");
        // What only newer clients have is called by its name.
        String topic = System.getProperty("door.topic");
        producer = topic != null ? TransactionMQProducer.class.getConstructor(String.class, List.class)
                .newInstance(arguments[1], Arrays.asList(topic))
            : trace == null && namespace == null ? new TransactionMQProducer(arguments[1], signer)
            : TransactionMQProducer.class.getConstructor(String.class, String.class, RPCHook.class, boolean.class,
                String.class).newInstance(namespace, arguments[1], signer, trace != null, trace);
        if (System.getProperty("door.namespaceV2") != null) {
            producer.getClass().getMethod("setNamespaceV2", String.class)
                .invoke(producer, System.getProperty("door.namespaceV2"));
        }
        if (System.getProperty("door.old") != null) {
            listen(System.getProperty("door.old"), "of-the-old-system", "");
        }
        if (System.getProperty("door.instance") != null) {
            producer.setInstanceName(System.getProperty("door.instance"));
        }
        producer.setNamesrvAddr(names);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setTransactionListener(new Listener());
        producer.start();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer;
            try {
                answer = "done\t" + obey(line.split("\t", -1));
            } catch (Throwable error) {
                error.printStackTrace();
                Throwable cause = error.getCause() == null ? error : error.getCause();
                answer = "error\t" + error + "\t" + (cause.getCause() == null ? cause : cause.getCause());
            }
            answers.println(answer.replace("\n", " "));
            answers.flush();
        }
        producer.shutdown();
        System.exit(0);
    }

    /** Of a jar of its own, which only some runs have. */
    private static RPCHook signer(String accessKey, String secretKey) throws Exception {
        Class<?> credentials = Class.forName("org.apache.rocketmq.acl.common.SessionCredentials");
        Object given = credentials.getConstructor(String.class, String.class).newInstance(accessKey, secretKey);
        Class<?> hook = Class.forName("org.apache.rocketmq.acl.common.AclClientRPCHook");
        return (RPCHook) hook.getConstructor(credentials).newInstance(given);
    }

    private static String obey(String[] command) throws Exception {
        switch (command[0]) {
            case "transaction":
                return transaction(command);
            case "plain":
                return told(producer.send(message(command[1], command[2], "", "", "")));
            case "selected":
                return told(producer.send(message(command[1], command[2], "", "", ""), new MessageQueueSelector() {
                    @Override
                    public MessageQueue select(List<MessageQueue> queues, Message message, Object argument) {
                        return queues.get((Integer) argument);
                    }
                }, Integer.parseInt(command[3])));
            case "oneway":
                producer.sendOneway(message(command[1], command[2], "", "", ""));
                return "";
            case "async":
                return async(message(command[1], command[2], "", "", ""));
            case "batch":
                List<Message> batch = new ArrayList<>();
                for (String body : command[2].split(",")) {
                    batch.add(message(command[1], body, "", "", ""));
                }
                return told(producer.send(batch));
            case "delayed":
                Message delayed = message(command[1], command[2], "", "", "");
                delayed.setDelayTimeLevel(Integer.parseInt(command[3]));
                return told(producer.send(delayed));
            case "request":
                return String.valueOf(producer.getClass().getMethod("request", Message.class, long.class)
                    .invoke(producer, message(command[1], command[2], "", "", ""), TIMEOUT_MS));
            case "property":
                Message odd = message(command[1], command[2], "", "", "");
                odd.putUserProperty(command[3], command[4]);
                return told(producer.send(odd));
            case "queues":
                return String.valueOf(producer.fetchPublishMessageQueues(command[1]).size());
            case "sent":
                return String.join(";", SENT);
            case "heard":
                return String.join(";", HEARD);
            case "checks":
                return String.join(";", CHECKS);
            case "listen":
                return listen(command[1], command[2], command[3]);
            case "consume":
                DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("consumers");
                consumer.setNamesrvAddr(names);
                consumer.start();
                try {
                    MessageQueue queue = consumer.fetchSubscribeMessageQueues(command[1]).iterator().next();
                    return String.valueOf(consumer.pull(queue, "*", 0, 1));
                } finally {
                    consumer.shutdown();
                }
            default:
                throw new IllegalArgumentException("no such command: " + Arrays.toString(command));
        }
    }

    /** A push consumer of a name server, in this process, with tags or with SQL92. It runs until the end. */
    private static String listen(String server, String topic, String filter) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("listeners");
        consumer.setNamesrvAddr(server);
        consumer.subscribe(topic, filter.isEmpty() ? MessageSelector.byTag("*") : MessageSelector.bySql(filter));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> HEARD.add(one.getProperty("text")));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return "started";
    }

    /** transaction, topic, body, answer, answers to checks, tags, keys, property p. */
    private static String transaction(String[] command) throws Exception {
        Message message = message(command[1], command[2], command[5], command[6], command[7]);
        ANSWERS.put(command[2], command[4].split(","));
        TransactionSendResult result = producer.sendMessageInTransaction(message, command[3]);
        return told(result) + "\t" + result.getLocalTransactionState() + "\t" + message.getTransactionId();
    }

    private static String async(Message message) throws Exception {
        CountDownLatch over = new CountDownLatch(1);
        AtomicReference<String> told = new AtomicReference<>("nothing");
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                told.set(told(result));
                over.countDown();
            }

            @Override
            public void onException(Throwable error) {
                told.set(error.toString());
                over.countDown();
            }
        });
        over.await();
        return told.get();
    }

    /** A body "x*1000" is a thousand letters x. */
    private static Message message(String topic, String text, String tags, String keys, String property) {
        String[] repeated = text.split("\\*");
        StringBuilder body = new StringBuilder(repeated[0]);
        for (int i = 1; repeated.length == 2 && i < Integer.parseInt(repeated[1]); i++) {
            body.append(repeated[0]);
        }
        Message message = new Message(topic, body.toString().getBytes(StandardCharsets.UTF_8));
        if (!tags.isEmpty()) {
            message.setTags(tags);
        }
        if (!keys.isEmpty()) {
            message.setKeys(keys);
        }
        if (!property.isEmpty()) {
            message.putUserProperty("p", property);
        }
        message.putUserProperty("text", text);
        return message;
    }

    private static String told(SendResult result) {
        return result.getSendStatus() + "\t" + result.getMsgId() + "\t" + result.getTransactionId() + "\t"
            + result.getMessageQueue().getQueueId() + "\t" + result.getQueueOffset();
    }

    /** The answer to a check about the message of another client, which stands in its text: "17/commit". */
    private static String ofAnother(String text) {
        return text.contains("/") ? text.substring(text.indexOf('/') + 1) : "unknown";
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
                throw new IllegalStateException("the application fails, as the test wants it");
        }
    }

    private static final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object answer) {
            SENT.add(message.getTransactionId() + "|" + message.getProperty("text"));
            return state((String) answer);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String text = message.getProperty("text");
            int number = ASKED.computeIfAbsent(text, ignored -> new AtomicInteger()).getAndIncrement();
            CHECKS.add(String.join("|", text, message.getTransactionId(), message.getTopic(), message.getTags(),
                message.getKeys(), message.getProperty("p"), message.getProperty("TRANSACTION_CHECK_TIMES"),
                message.getProperty("PGROUP"), String.valueOf(message.getBody().length),
                message.getBornHostString()));
            String[] answers = ANSWERS.getOrDefault(text, new String[] {ofAnother(text)});
            return state(answers[Math.min(number, answers.length - 1)]);
        }
    }
}
