package gateway.spark;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * What a gateway has said of a record in the headers before the producer's, as gateway/store/kafka/records.py writes and reads it. A
 * record without these comes from elsewhere: its route is `kafka`, and its id follows from where it is.
 */
final class Envelope {
  static final UTF8String ABSENT = UTF8String.fromString("gw.absent");
  static final byte[] ABSENT_VALUE = "value".getBytes(StandardCharsets.UTF_8);

  private static final UTF8String ID = UTF8String.fromString("gw.id"), ORIGIN = UTF8String.fromString("gw.origin");
  private static final UTF8String EXPIRES = UTF8String.fromString("gw.expires"), RUN = UTF8String.fromString("gw.run");
  /** What Java makes of bytes that are no text. */
  private static final UTF8String NO_TEXT = UTF8String.fromString("\ufffd");
  private static final int ID_BYTES = 20, BATCH_BYTES = 16, MOST_DIGITS = 15, MOST_KNOWN = 4096;
  private static final ObjectReader JSON = Options.JSON.reader().with(DeserializationFeature.FAIL_ON_TRAILING_TOKENS);

  /** Who sent it, by what way. */
  static final class Origin {
    static final UTF8String AT_MOST_ONCE = UTF8String.fromString("at_most_once");
    static final UTF8String AT_LEAST_ONCE = UTF8String.fromString("at_least_once");
    static final Origin FOREIGN = new Origin("kafka", "kafka", "", "kafka", AT_LEAST_ONCE);

    final UTF8String protocol, listener, principal, route, delivery;

    private Origin(String protocol, String listener, String principal, String route, UTF8String delivery) {
      this.protocol = UTF8String.fromString(protocol);
      this.listener = UTF8String.fromString(listener);
      this.principal = UTF8String.fromString(principal);
      this.route = UTF8String.fromString(route);
      this.delivery = delivery;
    }

    /** null: it is not what a gateway writes. */
    static Origin of(byte[] data) {
      JsonNode found;
      try {
        found = JSON.readTree(data);
      } catch (IOException error) {
        return null;
      }
      JsonNode delivery = found.path("delivery");
      if (!found.isObject() || !found.has("protocol") || !found.has("listener") || !delivery.isMissingNode() && !delivery.isInt()) return null;
      int asked = delivery.asInt(1);
      if (asked != 0 && asked != 1 || !found.path("via").isMissingNode() && !found.path("via").isArray()) return null;
      for (JsonNode one : found.path("via")) if (!text(one)) return null;
      for (String name : new String[] {"protocol", "listener", "principal", "client", "route"})
        if (found.has(name) && !text(found.get(name))) return null;
      return new Origin(
          found.get("protocol").textValue(), found.get("listener").textValue(), found.path("principal").asText(""),
          found.path("route").asText(""), asked == 0 ? AT_MOST_ONCE : AT_LEAST_ONCE);
    }

    private static boolean text(JsonNode one) {
      return one.isTextual() && StandardCharsets.UTF_8.newEncoder().canEncode(one.textValue());
    }
  }

  /** How many headers these are; batch and index, or null; milliseconds, or 0. */
  int own;
  byte[] id;
  long expires;
  Origin origin = Origin.FOREIGN;

  private final Map<ByteBuffer, Origin> known = new HashMap<>();
  private byte[] last = {};
  private Origin lastOrigin;

  /** Look at the headers of a record. False: they have names that are no text, and no envelope can be made of it. */
  boolean of(ArrayData headers) {
    own = 0;
    id = null;
    expires = 0;
    origin = Origin.FOREIGN;
    return headers == null || gateways(headers) || text(headers);
  }

  /** The same, and nothing is said of the record. */
  boolean readable(ArrayData headers) {
    return headers == null || text(headers) || gateways(headers);
  }

  private static boolean text(ArrayData headers) {
    for (int i = 0; i < headers.numElements(); i++)
      if (headers.getStruct(i, 2).getUTF8String(0).contains(NO_TEXT)) return false;
    return true;
  }

  private boolean gateways(ArrayData headers) {
    if (headers.numElements() < 2) return false;
    InternalRow first = headers.getStruct(0, 2);
    if (!first.getUTF8String(0).equals(ID) || first.isNullAt(1)) return false;
    byte[] name = first.getBinary(1);
    InternalRow second = headers.getStruct(1, 2);
    if (name.length != ID_BYTES || !second.getUTF8String(0).equals(ORIGIN) || second.isNullAt(1)) return false;
    Origin from = origin(second.getBinary(1));
    if (from == null) return false;
    int count = 2;
    long until = 0;
    if (headers.numElements() > 2) {
      InternalRow third = headers.getStruct(2, 2);
      UTF8String what = third.getUTF8String(0);
      boolean expiry = what.equals(EXPIRES);
      if (!third.isNullAt(1) && (expiry || what.equals(RUN))) {
        long number = number(third.getBinary(1));
        if (number < 0) return false;
        if (expiry) until = number;
        count = 3;
      }
    }
    own = count;
    id = name;
    expires = until;
    origin = from;
    return true;
  }

  private Origin origin(byte[] data) {
    if (lastOrigin != null && Arrays.equals(data, last)) return lastOrigin;
    Origin found = known.get(ByteBuffer.wrap(data));
    if (found == null) {
      found = Origin.of(data);
      if (found == null) return null;
      if (known.size() >= MOST_KNOWN) known.clear();
      known.put(ByteBuffer.wrap(data), found);
    }
    last = data;
    lastOrigin = found;
    return found;
  }

  /** Digits alone; less than nothing where it is something else. */
  private static long number(byte[] text) {
    if (text.length == 0 || text.length > MOST_DIGITS) return -1;
    long found = 0;
    for (byte one : text) {
      if (one < '0' || one > '9') return -1;
      found = found * 10 + one - '0';
    }
    return found;
  }

  /** The id of what comes from elsewhere: of a batch of its own. */
  static byte[] foreignId(long epoch, int partition, long offset, String topic) {
    byte[] place = (epoch + "/" + partition + "/" + offset + "/" + topic).getBytes(StandardCharsets.UTF_8);
    return Arrays.copyOf(Blake2b.digest(place, BATCH_BYTES), ID_BYTES);
  }
}
