// A consumer that does the work of each transaction once: with kafka-clients, a JDBC driver, and in PostgreSQL
// the tables seen (transaction_id VARCHAR(32) PRIMARY KEY) and shipments (what BYTEA).

import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class Shipping {
    public static void main(String[] arguments) throws Exception {
        var settings = new Properties();
        settings.put("bootstrap.servers", "127.0.0.1:9092");
        settings.put("group.id", "shipping");
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        try (var database = DriverManager.getConnection(arguments[0]);
             var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            database.setAutoCommit(false);
            consumer.subscribe(List.of("orders.placed"));
            while (true) {
                for (var message : consumer.poll(Duration.ofSeconds(1))) {
                    var id = new String(message.headers().lastHeader("UNIQ_KEY").value(), StandardCharsets.UTF_8);
                    if (isNew(database, id)) {
                        ship(database, message.value());
                    }
                    database.commit(); // one transaction: the effect, and that it happened
                }
                consumer.commitSync();
            }
        }
    }

    private static boolean isNew(Connection database, String id) throws SQLException {
        try (var insert = database.prepareStatement("INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING")) {
            insert.setString(1, id);
            return insert.executeUpdate() == 1;
        }
    }

    private static void ship(Connection database, byte[] what) throws SQLException {
        try (var insert = database.prepareStatement("INSERT INTO shipments VALUES (?)")) {
            insert.setBytes(1, what);
            insert.executeUpdate();
        }
    }
}
