import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.client.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.common.Pair;
import org.apache.rocketmq.client.core.RocketMQClientTemplate;
import org.apache.rocketmq.client.core.RocketMQTransactionChecker;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/**
 * An application with `rocketmq-v5-client-spring-boot-starter` at the end of a pipe, as DoorClient.java.
 *
 * Arguments: the endpoints of the doors, and the topic.
 */
@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
public class SpringGrpc {
    private static final Map<String, String> ANSWERS = new ConcurrentHashMap<>();
    private static final Queue<String> CHECKS = new ConcurrentLinkedQueue<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Spring's log must not look like an answer.
        System.setOut(System.err);
        SpringApplication application = new SpringApplication(SpringGrpc.class);
        application.setDefaultProperties(Map.of("rocketmq.producer.endpoints", arguments[0], "rocketmq.producer.topic",
            arguments[1], "rocketmq.producer.ssl-enabled", "false", "rocketmq.producer.request-timeout", "20"));
        try (ConfigurableApplicationContext context = application.run()) {
            RocketMQClientTemplate template = context.getBean(RocketMQClientTemplate.class);
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                try {
                    answers.println("done\t" + obey(template, line.split("\t", -1)));
                } catch (Exception error) {
                    answers.println("error\t" + error.toString().replace("\n", " "));
                }
            }
        }
        System.exit(0);
    }

    /** plain, topic, text; transaction, topic, text, answer, answer to checks, tags, keys, property p; checks. */
    private static String obey(RocketMQClientTemplate template, String[] command) throws Exception {
        switch (command[0]) {
            case "plain":
                return template.syncSendNormalMessage(command[1], command[2]).getMessageId().toString();
            case "transaction":
                ANSWERS.put(command[2], command[4]);
                Message<String> message = MessageBuilder.withPayload(command[2])
                    .setHeader("rocketmq_KEYS", orNull(command[6])).setHeader("p", orNull(command[7])).build();
                String destination = command[5].isEmpty() ? command[1] : command[1] + ":" + command[5];
                Pair<SendReceipt, Transaction> begun = template.sendTransactionMessage(destination, message);
                if ("commit".equals(command[3])) {
                    begun.getTransaction().commit();
                } else if ("rollback".equals(command[3])) {
                    begun.getTransaction().rollback();
                }
                return begun.getSendReceipt().getMessageId().toString();
            default:
                return String.join(";", CHECKS);
        }
    }

    /** The starter refuses empty headers; one that is null is none. */
    private static String orNull(String text) {
        return text.isEmpty() ? null : text;
    }

    @RocketMQTransactionListener
    static final class Checker implements RocketMQTransactionChecker {
        @Override
        public TransactionResolution check(MessageView message) {
            String text = StandardCharsets.UTF_8.decode(message.getBody()).toString();
            CHECKS.add(String.join("|", text, message.getTopic(), String.join(" ", message.getKeys()),
                message.getProperties().get("p"), String.valueOf(text.length())));
            return "commit".equals(ANSWERS.get(text)) ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        }
    }
}
