import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/**
 * An application with `spring-cloud-starter-stream-rocketmq` at the end of a pipe, as DoorClient.java.
 *
 * Arguments: the addresses of the doors as name servers, and the producer group, which is the topic's name.
 */
@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
public class SpringStream {
    private static final Map<String, String> ANSWERS = new ConcurrentHashMap<>();
    private static final Queue<String> CHECKS = new ConcurrentLinkedQueue<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Spring's log must not look like an answer.
        System.setOut(System.err);
        SpringApplication application = new SpringApplication(SpringStream.class);
        String stream = "--spring.cloud.stream.";
        String bindings = stream + "bindings.";
        String transactions = stream + "rocketmq.bindings.transactions.producer.";
        String others = stream + "rocketmq.bindings.others.producer.";
        try (ConfigurableApplicationContext context = application.run(
            stream + "rocketmq.binder.name-server=" + arguments[0], stream + "output-bindings=transactions;others",
            bindings + "transactions.destination=" + arguments[1], bindings + "others.destination=" + arguments[1],
            // Otherwise a string is written as JSON, in quotes.
            bindings + "transactions.producer.use-native-encoding=true",
            bindings + "others.producer.use-native-encoding=true",
            transactions + "group=" + arguments[1], transactions + "producer-type=Trans",
            // The default of 3 s is short for the first message on a busy machine.
            transactions + "send-msg-timeout=20000", others + "send-msg-timeout=20000",
            transactions + "transaction-listener=listener", others + "group=" + arguments[1] + "-others")) {
            StreamBridge bridge = context.getBean(StreamBridge.class);
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                try {
                    answers.println("done\t" + obey(bridge, line.split("\t", -1)));
                } catch (Exception error) {
                    answers.println("error\t" + error.toString().replace("\n", " "));
                }
            }
        }
        System.exit(0);
    }

    /** plain, topic, text; transaction, topic, text, answer, answer to checks, tags, keys, property p; checks. */
    private static String obey(StreamBridge bridge, String[] command) {
        switch (command[0]) {
            case "plain":
                return String.valueOf(bridge.send("others", command[2]));
            case "transaction":
                ANSWERS.put(command[2], command[4]);
                Object message = MessageBuilder.withPayload(command[2]).setHeader("TAGS", command[5])
                    .setHeader("KEYS", command[6]).setHeader("p", command[7])
                    .setHeader("TRANSACTIONAL_ARGS", command[3]).build();
                return String.valueOf(bridge.send("transactions", message));
            default:
                return String.join(";", CHECKS);
        }
    }

    private static LocalTransactionState state(String answer) {
        switch (answer) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    @Component("listener")
    static final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object answer) {
            return state((String) answer);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String text = new String(message.getBody(), StandardCharsets.UTF_8);
            CHECKS.add(String.join("|", text, message.getTopic(), message.getKeys(), message.getProperty("p"),
                String.valueOf(text.length())));
            return state(ANSWERS.get(text));
        }
    }
}
