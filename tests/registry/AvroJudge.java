import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;
import org.apache.avro.SchemaCompatibility.SchemaCompatibilityType;

/**
 * Judges Avro schemas by Avro's Java library, set up as Confluent's registry sets it up.
 *
 * <p>A line of the input is {"references": [{"name", "text"}], "schemas": [text]}; the line
 * of the output is {"parsed": [{"ok", "text" or "error"}], "reads": [[bool]]}. reads[i][j]: values
 * of schema j can be read by schema i (null where one of the two is not a schema).
 */
public final class AvroJudge {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] arguments) throws Exception {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    System.setOut(System.err); // the libraries may print
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonNode given = JSON.readTree(line);
      ObjectNode found = JSON.createObjectNode();
      ArrayNode parsed = found.putArray("parsed");
      List<Schema> read = new ArrayList<>();
      for (JsonNode text : given.get("schemas")) {
        ObjectNode verdict = parsed.addObject();
        Schema avro = null;
        try {
          List<Schema> others = new ArrayList<>();
          avro = parsed(text.asText(), given.get("references"), others);
          verdict.put("text", avro.toString(others, false));
          verdict.put("ok", true);
        } catch (Throwable error) {
          verdict.put("ok", false);
          String said = error.getClass().getSimpleName() + ": " + error.getMessage();
          verdict.put("error", said.substring(0, Math.min(200, said.length())));
        }
        read.add(avro);
      }
      reads(found.putArray("reads"), read);
      out.println(JSON.writeValueAsString(found));
      out.flush();
    }
  }

  private static void reads(ArrayNode rows, List<Schema> schemas) {
    for (Schema reader : schemas) {
      ArrayNode row = rows.addArray();
      for (Schema writer : schemas) {
        if (reader == null || writer == null) {
          row.addNull();
        } else {
          row.add(reads(reader, writer));
        }
      }
    }
  }

  /** As Confluent's registry has it, schemas that Avro cannot compare are not compatible. */
  private static boolean reads(Schema reader, Schema writer) {
    try {
      SchemaCompatibilityType type =
          SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getType();
      return type == SchemaCompatibilityType.COMPATIBLE;
    } catch (RuntimeException error) {
      return false;
    }
  }

  private static Schema parsed(String text, JsonNode references, List<Schema> others) {
    Schema.Parser parser = new Schema.Parser(NameValidator.STRICT_VALIDATOR);
    parser.setValidateDefaults(true);
    for (JsonNode reference : references) {
      others.add(parser.parse(reference.get("text").asText()));
    }
    return parser.parse(text);
  }
}
