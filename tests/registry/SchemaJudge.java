import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.github.erosb.jsonsKema.JsonParser;
import com.github.erosb.jsonsKema.SchemaLoaderConfig;
import com.squareup.wire.schema.Location;
import com.squareup.wire.schema.internal.parser.ProtoParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;
import org.apache.avro.SchemaCompatibility.SchemaCompatibilityType;
import org.json.JSONObject;
import org.json.JSONTokener;

/**
 * Judges schemas by the libraries that Confluent's registry uses, set up as it sets them up.
 *
 * <p>A line of the input is {"kind", "references": [{"name", "text"}], "schemas": [text]}; the line
 * of the output is {"parsed": [{"ok", "text" or "error"}], "reads": [[bool]]}. reads[i][j]: values
 * of schema j can be read by schema i (Avro alone; null where one of the two is not a schema).
 */
public final class SchemaJudge {
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
          switch (given.get("kind").asText()) {
            case "AVRO" -> {
              List<Schema> others = new ArrayList<>();
              avro = avro(text.asText(), given.get("references"), others);
              verdict.put("text", avro.toString(others, false));
            }
            case "JSON" -> json(text.asText(), given.get("references"));
            default ->
                ProtoParser.Companion.parse(Location.get("unknown.proto"), text.asText());
          }
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

  private static Schema avro(String text, JsonNode references, List<Schema> others) {
    Schema.Parser parser = new Schema.Parser(NameValidator.STRICT_VALIDATOR);
    parser.setValidateDefaults(true);
    for (JsonNode reference : references) {
      others.add(parser.parse(reference.get("text").asText()));
    }
    return parser.parse(text);
  }

  private static void json(String text, JsonNode references) throws Exception {
    JsonNode node = JSON.readTree(text);
    if (node.isBoolean()) {
      return;
    }
    String draft = node.path("$schema").asText("");
    boolean isLate = draft.contains("/2019-09/") || draft.contains("/2020-12/");
    String id = node.path(draft.contains("draft-04") ? "id" : "$id").asText("");
    Map<URI, String> others = new HashMap<>();
    for (JsonNode reference : references) {
      URI name = new URI(reference.get("name").asText());
      others.put(id.isEmpty() ? name : new URI(id).resolve(name), reference.get("text").asText());
    }
    if (isLate) {
      Map<URI, String> known = new HashMap<>();
      others.forEach((name, schema) -> known.put(URI.create("mem://input").resolve(name), schema));
      known.putAll(others);
      SchemaLoaderConfig config = SchemaLoaderConfig.createDefaultConfig(known);
      new com.github.erosb.jsonsKema.SchemaLoader(new JsonParser(text).parse(), config).load();
      return;
    }
    var builder = org.everit.json.schema.loader.SchemaLoader.builder();
    builder.useDefaults(true).draftV7Support();
    builder.schemaClient(
        address -> {
          throw new IllegalArgumentException("nothing is fetched: " + address);
        });
    others.forEach((name, schema) -> builder.registerSchemaByURI(name, new JSONObject(schema)));
    builder.schemaJson(new JSONObject(new JSONTokener(text)));
    builder.build().load().build();
  }
}
