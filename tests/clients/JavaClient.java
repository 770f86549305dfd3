import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's Java client as a process: writes the records of standard input, or prints those it reads.
 * Lines are words: TIMESTAMP KEY VALUE [NAME VALUE]..., in base64, a null as "-", empty as "=".
 */
public final class JavaClient {
    private JavaClient() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        if (arguments[0].equals("write")) {
            write(settings, arguments[2], arguments[3]);
        } else {
            read(settings, arguments[2], Integer.parseInt(arguments[3]));
        }
    }

    private static void write(Properties settings, String topic, String codec) throws Exception {
        settings.put("compression.type", codec);
        settings.put("linger.ms", "20");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        ByteArraySerializer bytes = new ByteArraySerializer();
        var sent = new ArrayList<java.util.concurrent.Future<?>>();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings, bytes, bytes)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ");
                List<Header> headers = new ArrayList<>();
                for (int index = 3; index < words.length; index += 2) {
                    headers.add(new RecordHeader(new String(parsed(words[index])), parsed(words[index + 1])));
                }
                sent.add(producer.send(new ProducerRecord<>(
                    topic, 0, Long.parseLong(words[0]), parsed(words[1]), parsed(words[2]), headers)));
            }
            for (var answer : sent) {
                answer.get();
            }
        }
    }

    private static void read(Properties settings, String topic, int count) {
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            int seen = 0;
            while (seen < count) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println(printed(record));
                    seen++;
                }
            }
        }
    }

    private static String printed(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder line = new StringBuilder();
        line.append(record.timestamp()).append(' ');
        line.append(text(record.key())).append(' ').append(text(record.value()));
        for (Header header : record.headers()) {
            line.append(' ').append(text(header.key().getBytes())).append(' ').append(text(header.value()));
        }
        return line.toString();
    }

    private static byte[] parsed(String word) {
        if (word.equals("-")) {
            return null;
        }
        return word.equals("=") ? new byte[0] : Base64.getDecoder().decode(word);
    }

    private static String text(byte[] data) {
        if (data == null) {
            return "-";
        }
        return data.length == 0 ? "=" : Base64.getEncoder().encodeToString(data);
    }
}
