import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's Java client on a secured listener. Arguments: a file of client settings, and a topic.
 * Commands of standard input, each with one line of output: "send VALUE" and "read COUNT".
 */
public final class SecuredClient {
    private SecuredClient() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (InputStream file = new FileInputStream(arguments[0])) {
            settings.load(file);
        }
        settings.put("linger.ms", "0");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringSerializer text = new StringSerializer();
        try (var producer = new KafkaProducer<String, String>(settings, text, text)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String value = line.substring(5);
                System.out.println(line.startsWith("send ")
                    ? sent(producer, arguments[1], value)
                    : read(settings, arguments[1], Integer.parseInt(value)));
            }
        }
    }

    private static String sent(KafkaProducer<String, String> producer, String topic, String value)
            throws InterruptedException {
        try {
            producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
            return "ok";
        } catch (ExecutionException error) {
            return refused(error.getCause());
        } catch (RuntimeException error) {
            return refused(error);
        }
    }

    private static String read(Properties settings, String topic, int count) {
        StringDeserializer text = new StringDeserializer();
        List<String> values = new ArrayList<>();
        try (var consumer = new KafkaConsumer<String, String>(settings, text, text)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long limit = Long.parseLong(settings.getProperty("default.api.timeout.ms"));
            long end = System.nanoTime() + Duration.ofMillis(limit).toNanos();
            while (values.size() < count && System.nanoTime() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    values.add(record.value());
                }
            }
        } catch (RuntimeException error) {
            return refused(error);
        }
        return "ok " + String.join(",", values);
    }

    private static String refused(Throwable error) {
        StringBuilder line = new StringBuilder("refused");
        for (Throwable one = error; one != null; one = one.getCause()) {
            line.append(' ').append(one.toString().replace('\n', ' '));
        }
        return line.toString();
    }
}
