import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;

/** Reads "KEY VERSION request|response HEX" lines and writes each message again, in Kafka's bytes. */
public final class WireEcho {
    private WireEcho() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, false);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(echo(line));
            out.flush();
        }
    }

    private static String echo(String line) {
        String[] parts = line.split(" ", -1);
        short version = Short.parseShort(parts[1]);
        try {
            ApiMessageType type = ApiMessageType.fromApiKey(Short.parseShort(parts[0]));
            ApiMessage message = parts[2].equals("request") ? type.newRequest() : type.newResponse();
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(parts[3]));
            message.read(new ByteBufferAccessor(bytes), version);
            if (bytes.hasRemaining()) {
                return "error: " + bytes.remaining() + " bytes are left over";
            }
            ByteBuffer again = MessageUtil.toByteBufferAccessor(message, version).buffer();
            byte[] written = new byte[again.remaining()];
            again.get(written);
            return HexFormat.of().formatHex(written);
        } catch (RuntimeException error) {
            return "error: " + error;
        }
    }
}
