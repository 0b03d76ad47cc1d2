import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Configuration;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/**
 * An application with `rocketmq-spring-boot-starter` at the end of a pipe, as DoorClient.java.
 *
 * Arguments: the addresses of the doors as name servers, and the producer group.
 */
@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
public class SpringRemoting {
    private static final Map<String, String> ANSWERS = new ConcurrentHashMap<>();
    private static final Queue<String> CHECKS = new ConcurrentLinkedQueue<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // Spring's log must not look like an answer.
        System.setOut(System.err);
        SpringApplication application = new SpringApplication(SpringRemoting.class);
        application.setDefaultProperties(Map.of("rocketmq.name-server", arguments[0], "rocketmq.producer.group",
            arguments[1], "rocketmq.producer.send-message-timeout", "20000"));
        try (ConfigurableApplicationContext context = application.run()) {
            RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
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
    private static String obey(RocketMQTemplate template, String[] command) {
        switch (command[0]) {
            case "plain":
                return template.syncSend(command[1], command[2]).getMsgId();
            case "transaction":
                ANSWERS.put(command[2], command[4]);
                Message<String> message = MessageBuilder.withPayload(command[2]).setHeader("KEYS", command[6])
                    .setHeader("p", command[7].isEmpty() ? null : command[7]).build();
                return template.sendMessageInTransaction(command[1] + ":" + command[5], message, command[3])
                    .getMsgId();
            default:
                return String.join(";", CHECKS);
        }
    }

    private static RocketMQLocalTransactionState state(String answer) {
        switch (answer) {
            case "commit":
                return RocketMQLocalTransactionState.COMMIT;
            case "rollback":
                return RocketMQLocalTransactionState.ROLLBACK;
            default:
                return RocketMQLocalTransactionState.UNKNOWN;
        }
    }

    @RocketMQTransactionListener
    static final class Listener implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object answer) {
            return state((String) answer);
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            String text = new String((byte[]) message.getPayload(), StandardCharsets.UTF_8);
            Map<String, Object> headers = message.getHeaders();
            CHECKS.add(String.join("|", text, String.valueOf(headers.get("rocketmq_TOPIC")),
                String.valueOf(headers.get("rocketmq_KEYS")), String.valueOf(headers.get("p")),
                String.valueOf(text.length())));
            return state(ANSWERS.get(text));
        }
    }
}
