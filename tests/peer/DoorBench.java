import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What transactions cost a producer alone, by RocketMQ's own Java client, in front of a RocketMQ or of a door: one command
 * a line in, one answer a line out, both JSON objects. It stays warm from one measurement to the next, and ends with its
 * input.
 *
 * Arguments: the name servers' addresses, the broker's address and name, the topic, the number of its queues (0: it exists).
 */
public final class DoorBench {
    private static final String GROUP = "bench";
    private static final int TIMEOUT_MS = 10_000;
    /** Longer than any measurement: a machine that needs more tells nothing. */
    private static final long PATIENCE_S = 300;

    /** One measurement: its messages are numbered from 0. Times are those of the monotonic clock. */
    private static final class Run {
        final long[] begun;
        final long[] acknowledged;

        Run(int count) {
            begun = new long[count];
            acknowledged = new long[count];
        }

        /** Median and 99th percentile of the time from a SEND until its answer, which is when the listener is called (ms). */
        List<Double> sendMs() {
            long[] times = new long[begun.length];
            Arrays.setAll(times, number -> acknowledged[number] - begun[number]);
            Arrays.sort(times);
            return List.of(times[times.length / 2] / 1e6, times[(int) (times.length * 0.99)] / 1e6);
        }
    }

    private final TransactionMQProducer producer = new TransactionMQProducer(GROUP);
    private final String topic;
    private volatile Run run;

    private DoorBench(String[] arguments) throws Exception {
        topic = arguments[3];
        int queues = Integer.parseInt(arguments[4]);
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                run.acknowledged[(Integer) number] = System.nanoTime();
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        if (queues > 0) {
            MQClientInstance own = producer.getDefaultMQProducerImpl().getMqClientFactory();
            own.getMQClientAPIImpl().createTopic(
                arguments[1], "TBW102", new TopicConfig(topic, queues, queues), TIMEOUT_MS);
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(TIMEOUT_MS);
            while (!own.updateTopicRouteInfoFromNameServer(topic)) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("the name server does not know the topic " + topic);
                }
                Thread.sleep(50);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Whatever a library prints must not look like an answer.
        System.setOut(System.err);
        DoorBench bench = started(arguments);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("done", bench.obey(JSON.parseObject(line)));
            } catch (Exception error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            answers.println(JSON.toJSONString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private static DoorBench started(String[] arguments) {
        try {
            return new DoorBench(arguments);
        } catch (Exception error) {
            error.printStackTrace();
            // Threads of the client would keep the process.
            System.exit(1);
            throw new IllegalStateException(error);
        }
    }

    private Object obey(JSONObject command) throws Exception {
        switch (command.getString("command")) {
            case "measure":
                return measure(command.getIntValue("count"), command.getIntValue("threads"), command.getIntValue("size"));
            case "visible":
                return visible();
            case "wait_visible":
                return waitVisible(command.getLongValue("total"));
            default:
                throw new IllegalArgumentException("no such command: " + command);
        }
    }

    /** From the first send until the last transaction was acknowledged and its decision sent. */
    private Map<String, Object> measure(int count, int threads, int size) throws Exception {
        Run current = new Run(count);
        run = current;
        AtomicInteger next = new AtomicInteger();
        AtomicReference<Exception> failed = new AtomicReference<>();
        Thread[] senders = new Thread[threads];
        long since = System.nanoTime();
        for (int thread = 0; thread < threads; thread++) {
            senders[thread] = new Thread(() -> {
                try {
                    for (int number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                        byte[] body = new byte[size];
                        ThreadLocalRandom.current().nextBytes(body);
                        current.begun[number] = System.nanoTime();
                        TransactionSendResult sent = producer.sendMessageInTransaction(new Message(topic, body), number);
                        if (sent.getSendStatus() != SendStatus.SEND_OK
                            || sent.getLocalTransactionState() != LocalTransactionState.COMMIT_MESSAGE) {
                            throw new IllegalStateException("not acknowledged: " + sent);
                        }
                    }
                } catch (Exception error) {
                    failed.set(error);
                    // The others need not go on.
                    next.set(count);
                }
            });
            senders[thread].start();
        }
        for (Thread sender : senders) {
            sender.join();
        }
        long sent = System.nanoTime();
        if (failed.get() != null) {
            throw failed.get();
        }
        return Map.of("since", since / 1e9, "sent", sent / 1e9, "send_ms", current.sendMs());
    }

    /** How many messages a consumer could have read so far; only a RocketMQ tells. */
    private long visible() throws Exception {
        long total = 0;
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            total += producer.maxOffset(queue);
        }
        return total;
    }

    /** When that became so many, on the monotonic clock (s). */
    private double waitVisible(long total) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        long seen = visible();
        while (seen < total) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(seen + " of " + total + " became visible");
            }
            Thread.sleep(5);
            seen = visible();
        }
        return System.nanoTime() / 1e9;
    }
}
