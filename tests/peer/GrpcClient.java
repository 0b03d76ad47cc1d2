import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/**
 * RocketMQ's Java client of the gRPC protocol at the end of a pipe: one command a line in, one answer a line out. Fields
 * are separated by tabs. An answer begins with "done" or "error". It ends with its input.
 *
 * Arguments: the addresses of the doors, the topics that the producer names at its start, an AccessKey with its secret
 * (both may be empty), and whether it speaks TLS.
 */
public final class GrpcClient {
    /** For a machine that is loaded; RocketMQ's own default is 3 s. */
    private static final Duration TIMEOUT = Duration.ofSeconds(20);

    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, String[]> ANSWERS = new ConcurrentHashMap<>();
    private static final Map<String, AtomicInteger> ASKED = new ConcurrentHashMap<>();
    private static final ConcurrentLinkedQueue<String> CHECKS = new ConcurrentLinkedQueue<>();
    private static final ConcurrentLinkedQueue<String> SENT = new ConcurrentLinkedQueue<>();
    private static ClientConfiguration configuration;
    private static Producer producer;

    private GrpcClient() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Whatever a library prints must not look like an answer.
        System.setOut(System.err);
        ClientConfigurationBuilder built = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .setRequestTimeout(TIMEOUT);
        if (!Boolean.parseBoolean(arguments[4])) {
            // The first versions have no such method: they speak nothing but TLS.
            ClientConfigurationBuilder.class.getMethod("enableSsl", boolean.class).invoke(built, false);
        }
        if (!arguments[2].isEmpty()) {
            built.setCredentialProvider(new StaticSessionCredentialsProvider(arguments[2], arguments[3]));
        }
        configuration = built.build();
        ProducerBuilder builder = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTransactionChecker(GrpcClient::check);
        if (!arguments[1].isEmpty()) {
            builder.setTopics(arguments[1].split(","));
        }
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer;
            try {
                if (producer == null) {
                    producer = builder.build();
                }
                answer = "done\t" + obey(line.split("\t", -1));
            } catch (Throwable error) {
                error.printStackTrace();
                StringBuilder all = new StringBuilder("error");
                for (Throwable one = error; one != null; one = one.getCause()) {
                    all.append("\t").append(one);
                }
                answer = all.toString();
            }
            answers.println(answer.replaceAll("\\R", " "));
            answers.flush();
        }
        if (producer != null) {
            producer.close();
        }
        System.exit(0);
    }

    private static String obey(String[] command) throws Exception {
        switch (command[0]) {
            case "transaction":
                return transaction(command);
            case "plain":
                return told(producer.send(message(command[1], command[2], "", "", "").build()));
            case "fifo":
                return told(producer.send(message(command[1], command[2], "", "", "").setMessageGroup(command[3])
                    .build()));
            case "delayed":
                return told(producer.send(message(command[1], command[2], "", "", "")
                    .setDeliveryTimestamp(System.currentTimeMillis() + 1000 * Long.parseLong(command[3])).build()));
            case "several":
                return several(command);
            case "sent":
                return String.join(";", SENT);
            case "checks":
                return String.join(";", CHECKS);
            case "consume":
                try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                    .setClientConfiguration(configuration).setConsumerGroup("consumers")
                    .setAwaitDuration(Duration.ofSeconds(5))
                    .setSubscriptionExpressions(Collections.singletonMap(command[1], FilterExpression.SUB_ALL))
                    .build()) {
                    return String.valueOf(consumer.receive(1, Duration.ofSeconds(10)));
                }
            default:
                throw new IllegalArgumentException("no such command: " + Arrays.toString(command));
        }
    }

    /** transaction, topic, body, answer, answers to checks, tag, keys, property p. */
    private static String transaction(String[] command) throws Exception {
        ANSWERS.put(command[2], command[4].split(","));
        Transaction begun = producer.beginTransaction();
        SendReceipt receipt = producer.send(message(command[1], command[2], command[5], command[6], command[7]).build(),
            begun);
        // What follows may fail; the local transaction has decided all the same.
        SENT.add(told(receipt) + "|" + command[2]);
        if ("commit".equals(command[3])) {
            begun.commit();
        } else if ("rollback".equals(command[3])) {
            begun.rollback();
        }
        return told(receipt);
    }

    /** several, topic, answer, bodies: transactions at the same time. */
    private static String several(String[] command) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(8);
        List<Future<String>> sent = new ArrayList<>();
        for (int i = 3; i < command.length; i++) {
            String text = command[i];
            sent.add(threads.submit(() -> transaction(
                new String[] {"transaction", command[1], text, command[2], command[2], "", "", ""})));
        }
        List<String> told = new ArrayList<>();
        for (Future<String> one : sent) {
            told.add(one.get());
        }
        threads.shutdown();
        return String.join("\t", told);
    }

    /** A body "x*1000" is a thousand letters x. */
    private static MessageBuilder message(String topic, String text, String tag, String keys, String property) {
        String[] repeated = text.split("\\*");
        StringBuilder body = new StringBuilder(repeated[0]);
        for (int i = 1; repeated.length == 2 && i < Integer.parseInt(repeated[1]); i++) {
            body.append(repeated[0]);
        }
        MessageBuilder message = PROVIDER.newMessageBuilder().setTopic(topic).addProperty("text", text)
            .setBody(body.toString().getBytes(StandardCharsets.UTF_8));
        if (!tag.isEmpty()) {
            message.setTag(tag);
        }
        if (!keys.isEmpty()) {
            message.setKeys(keys.split(" "));
        }
        if (!property.isEmpty()) {
            message.addProperty("p", property);
        }
        return message;
    }

    private static String told(SendReceipt receipt) {
        return receipt.getMessageId().toString();
    }

    private static TransactionResolution check(MessageView message) {
        String text = message.getProperties().get("text");
        int number = ASKED.computeIfAbsent(text, ignored -> new AtomicInteger()).getAndIncrement();
        String host = message.getBornHost();
        CHECKS.add(String.join("|", text, message.getMessageId().toString(), message.getTopic(),
            message.getTag().orElse(""), String.join(" ", new TreeSet<>(message.getKeys())),
            message.getProperties().getOrDefault("p", ""), String.valueOf(message.getBody().remaining()),
            ((MessageViewImpl) message).isCorrupted() ? "True" : "False", host.substring(0, host.lastIndexOf(':'))));
        // The answer about the message of another client stands in its text: "17/commit".
        String[] answers = ANSWERS.getOrDefault(text, new String[] {text.substring(text.indexOf('/') + 1)});
        switch (answers[Math.min(number, answers.length - 1)]) {
            case "commit":
                return TransactionResolution.COMMIT;
            case "rollback":
                return TransactionResolution.ROLLBACK;
            default:
                return TransactionResolution.UNKNOWN;
        }
    }
}
