import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What transactional messages cost with RocketMQ's own Java client: one command a line in, one answer a line out, both
 * JSON objects. It stays warm from one measurement to the next, and ends with its input.
 *
 * Arguments: the name server's address, the broker's address and name, the topic, the number of its queues.
 */
public final class PeerBench {
    private static final String GROUP = "bench";
    private static final int TIMEOUT_MS = 10_000;
    /** Longer than any measurement: a machine that needs more tells nothing about RocketMQ. */
    private static final long PATIENCE_S = 300;
    /** What RocketMQ did best with on two cores. */
    private static final int CHECK_THREADS = 4;

    /**
     * The consumer is the only one, and reads all queues. The servers are stopped between measurements; when they go on, the
     * broker may count it twice, by a connection that is gone, for two minutes, and it would leave half of the queues to
     * that other one.
     */
    private static final class AllQueues implements AllocateMessageQueueStrategy {
        @Override
        public List<MessageQueue> allocate(String group, String client, List<MessageQueue> queues, List<String> clients) {
            return queues;
        }

        @Override
        public String getName() {
            return "ALL";
        }
    }

    /** One measurement: its messages are numbered from 0. */
    private static final class Run {
        final long id = System.nanoTime();
        /** Of 100 messages so many are rolled back, and so many answer unknown first and commit when they are checked. */
        final int rollback;
        final int unknown;
        final long[] decided;
        final long[] visible;
        final AtomicIntegerArray copies;
        final CountDownLatch missing;
        final AtomicInteger checks = new AtomicInteger();

        Run(int count, int rollback, int unknown) {
            this.rollback = rollback;
            this.unknown = unknown;
            decided = new long[count];
            visible = new long[count];
            copies = new AtomicIntegerArray(count);
            int commits = 0;
            for (int number = 0; number < count; number++) {
                commits += state(number) == LocalTransactionState.ROLLBACK_MESSAGE ? 0 : 1;
            }
            missing = new CountDownLatch(commits);
        }

        LocalTransactionState state(int number) {
            int place = number % 100;
            if (place < rollback) {
                return LocalTransactionState.ROLLBACK_MESSAGE;
            }
            return place < rollback + unknown ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
        }

        void saw(int number) {
            if (copies.getAndIncrement(number) == 0) {
                visible[number] = System.nanoTime();
                missing.countDown();
            }
        }
    }

    private final TransactionMQProducer producer = new TransactionMQProducer(GROUP);
    private final DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench_reader");
    private final String topic;
    private volatile Run run = new Run(0, 0, 0);

    private PeerBench(String[] arguments) throws Exception {
        String names = arguments[0];
        String broker = arguments[1];
        String brokerName = arguments[2];
        topic = arguments[3];
        int queues = Integer.parseInt(arguments[4]);
        producer.setNamesrvAddr(names);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        // With its own pool of one thread, checks queue up in the client; requests beyond 2,000 would be dropped.
        producer.setExecutorService(new ThreadPoolExecutor(
            CHECK_THREADS, CHECK_THREADS, 60, TimeUnit.SECONDS, new LinkedBlockingQueue<>(1_000_000)));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                run.decided[(Integer) number] = System.nanoTime();
                return run.state((Integer) number);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                run.checks.incrementAndGet();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        MQClientInstance own = producer.getDefaultMQProducerImpl().getMqClientFactory();
        own.getMQClientAPIImpl().createTopic(broker, "TBW102", new TopicConfig(topic, queues, queues), TIMEOUT_MS);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(TIMEOUT_MS);
        while (!own.updateTopicRouteInfoFromNameServer(topic) && own.findBrokerAddressInPublish(brokerName) == null) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the name server does not know the topic " + topic);
            }
            Thread.sleep(50);
        }
        // Otherwise its first heartbeat may come 30 s late, and nobody could be asked meanwhile.
        own.sendHeartbeatToAllBrokerWithLock();
        consumer.setNamesrvAddr(names);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(new AllQueues());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                if (body.getLong() == run.id) {
                    run.saw(body.getInt());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Whatever a library prints must not look like an answer.
        System.setOut(System.err);
        PeerBench bench = started(arguments);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                JSONObject command = JSON.parseObject(line);
                boolean timer = "timer".equals(command.getString("command"));
                answer.put("done", timer ? bench.timer(command) : bench.measure(command));
            } catch (Exception error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            answers.println(JSON.toJSONString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private static PeerBench started(String[] arguments) {
        try {
            return new PeerBench(arguments);
        } catch (Exception error) {
            error.printStackTrace();
            // Threads of the client would keep the process.
            System.exit(1);
            throw new IllegalStateException(error);
        }
    }

    /**
     * From the first send until the last committed message was seen, and from each decision until its message was seen.
     *
     * With a rate, so many are sent a second. settle_s: how long to look for further copies, when all were seen once.
     */
    private Map<String, Object> measure(JSONObject command) throws Exception {
        int count = command.getIntValue("count");
        int threads = command.getIntValue("threads");
        int size = command.getIntValue("size");
        double rate = command.getDoubleValue("rate");
        Run current = new Run(count, command.getIntValue("rollback"), command.getIntValue("unknown"));
        run = current;
        long since = System.nanoTime();
        inThreads(threads, count, number -> {
            if (rate > 0) {
                sleepUntil(since + (long) (number * 1e9 / rate));
            }
            producer.sendMessageInTransaction(new Message(topic, body(current, number, size)), number);
        });
        long sent = System.nanoTime();
        if (!current.missing.await(PATIENCE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(current.missing.getCount() + " of " + count + " did not become visible");
        }
        Thread.sleep((long) (command.getDoubleValue("settle_s") * 1_000));
        long last = 0;
        int copies = 0;
        for (int number = 0; number < count; number++) {
            last = Math.max(last, current.visible[number]);
            copies += Math.max(0, current.copies.get(number) - 1);
        }
        Map<String, Object> found = new HashMap<>();
        found.put("seconds", (last - since) / 1e9);
        found.put("sending_s", (sent - since) / 1e9);
        found.put("last_decided_to_last_visible_s", (last - Arrays.stream(current.decided).max().orElse(0)) / 1e9);
        found.put("checks", current.checks.get());
        found.put("copies", copies);
        found.put("visible_ms", visible(current));
        return found;
    }

    /**
     * How late timer messages were received, in ms, by number: `rate` of them are due a second, the first in ahead_ms. They
     * are plain messages; all are stored before the first is due.
     */
    private List<Double> timer(JSONObject command) throws Exception {
        int count = command.getIntValue("count");
        int size = command.getIntValue("size");
        double rate = command.getDoubleValue("rate");
        long aheadMs = command.getLongValue("ahead_ms");
        Run current = new Run(count, 0, 0);
        run = current;
        // Times are given in ms and measured in ns: both clocks are read where a new millisecond begins.
        long before = System.currentTimeMillis();
        while (System.currentTimeMillis() == before) {
            Thread.onSpinWait();
        }
        long since = System.nanoTime();
        long sinceMs = System.currentTimeMillis();
        inThreads(command.getIntValue("threads"), count, number -> {
            long inMs = aheadMs + (long) (number * 1e3 / rate);
            current.decided[number] = since + TimeUnit.MILLISECONDS.toNanos(inMs);
            Message message = new Message(topic, body(current, number, size));
            message.setDeliverTimeMs(sinceMs + inMs);
            SendStatus status = producer.send(message).getSendStatus();
            if (status != SendStatus.SEND_OK) {
                throw new IllegalStateException("stored with " + status);
            }
        });
        if (System.nanoTime() > since + TimeUnit.MILLISECONDS.toNanos(aheadMs)) {
            throw new IllegalStateException("the first was due before all were stored: give --headstart");
        }
        if (!current.missing.await(PATIENCE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(current.missing.getCount() + " of " + count + " were not delivered");
        }
        List<Double> late = new ArrayList<>(count);
        for (int number = 0; number < count; number++) {
            late.add((current.visible[number] - current.decided[number]) / 1e6);
        }
        return late;
    }

    private interface Numbered {
        void send(int number) throws Exception;
    }

    /** So many sends, numbered from 0, by so many threads; returns when all are done. */
    private static void inThreads(int threads, int count, Numbered work) throws Exception {
        AtomicInteger next = new AtomicInteger();
        AtomicReference<Exception> failed = new AtomicReference<>();
        Thread[] senders = new Thread[threads];
        for (int thread = 0; thread < threads; thread++) {
            senders[thread] = new Thread(() -> {
                try {
                    for (int number = next.getAndIncrement(); number < count; number = next.getAndIncrement()) {
                        work.send(number);
                    }
                } catch (Exception error) {
                    failed.set(error);
                }
            });
            senders[thread].start();
        }
        for (Thread sender : senders) {
            sender.join();
        }
        if (failed.get() != null) {
            throw failed.get();
        }
    }

    private static byte[] body(Run run, int number, int size) {
        ByteBuffer body = ByteBuffer.allocate(Math.max(size, 12));
        body.putLong(run.id).putInt(number);
        return body.array();
    }

    private static void sleepUntil(long time) throws InterruptedException {
        long left = time - System.nanoTime();
        if (left > 0) {
            TimeUnit.NANOSECONDS.sleep(left);
        }
    }

    /** Median and 99th percentile of the time from a local transaction until its message was seen, in ms. */
    private static List<Double> visible(Run run) {
        long[] times = new long[run.decided.length];
        int number = 0;
        for (int message = 0; message < times.length; message++) {
            if (run.state(message) != LocalTransactionState.ROLLBACK_MESSAGE) {
                times[number++] = run.visible[message] - run.decided[message];
            }
        }
        if (number == 0) {
            return List.of();
        }
        long[] sorted = Arrays.copyOf(times, number);
        Arrays.sort(sorted);
        return List.of(sorted[number / 2] / 1e6, sorted[(int) (number * 0.99)] / 1e6);
    }
}
