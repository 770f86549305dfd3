import java.util.ArrayList;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's Java producer in a zone (KIP-1123): SERVERS RACK TOPIC COUNT. Writes so many records of
 * 500 bytes, with a key if KEY is given too, in batches of few: each batch chooses a partition.
 */
public final class ZoneProducer {
    private ZoneProducer() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("client.rack", arguments[1]);
        settings.put("partitioner.rack.aware", "true");
        settings.put("batch.size", "2048");
        byte[] key = arguments.length > 4 ? arguments[4].getBytes() : null;
        ByteArraySerializer bytes = new ByteArraySerializer();
        var sent = new ArrayList<java.util.concurrent.Future<?>>();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings, bytes, bytes)) {
            for (int number = Integer.parseInt(arguments[3]); number > 0; number--) {
                sent.add(producer.send(new ProducerRecord<>(arguments[2], key, new byte[500])));
            }
            for (var response : sent) {
                response.get();
            }
        }
    }
}
