package gateway.spark;

import java.io.Serializable;
import java.nio.charset.CharacterCodingException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/** A log on Kafka: where it is, how the names of its topics begin, and how its brokers are logged in to. It travels to executors. */
final class Brokers implements Serializable {
  /** How the topics begin, behind the prefix, that hold no messages. */
  private static final String OURS = "__gateway.";

  final String servers, prefix;
  /** As Java's client has them. */
  private final Map<String, String> settings;

  Brokers(String servers, String prefix, Map<String, String> settings) {
    this.servers = servers;
    this.prefix = prefix;
    this.settings = settings;
  }

  /** What a client is told. */
  Map<String, String> client() {
    Map<String, String> made = new HashMap<>(settings);
    made.put("bootstrap.servers", servers);
    return made;
  }

  /** What Kafka calls a topic: the prefix and its name, with `_xHH` for each byte that no name of Kafka's may have. */
  String named(String topic) {
    StringBuilder made = new StringBuilder(prefix);
    byte[] bytes = topic.getBytes(StandardCharsets.UTF_8);
    for (int i = 0; i < bytes.length; i++) {
      int one = bytes[i] & 255;
      boolean plain = one == '.' || one == '-' || one == '_' && !escapes(bytes, i) || one < 128 && Character.isLetterOrDigit(one);
      if (plain) made.append((char) one);
      else made.append(String.format("_x%02X", one));
    }
    return made.toString();
  }

  /** The topic that a topic of Kafka's is; null if it is none with messages. */
  String topic(String name) {
    if (!name.startsWith(prefix)) return null;
    byte[] bytes = name.substring(prefix.length()).getBytes(StandardCharsets.UTF_8);
    ByteBuffer plain = ByteBuffer.allocate(bytes.length);
    for (int i = 0; i < bytes.length; i++) {
      if (escapes(bytes, i)) {
        plain.put((byte) (Character.digit(bytes[i + 2], 16) << 4 | Character.digit(bytes[i + 3], 16)));
        i += 3;
      } else {
        plain.put(bytes[i]);
      }
    }
    try {
      String topic = StandardCharsets.UTF_8.newDecoder().decode(plain.flip()).toString();
      return topic.isEmpty() || topic.startsWith(OURS) || !named(topic).equals(name) ? null : topic;
    } catch (CharacterCodingException error) {
      return null;
    }
  }

  private static boolean escapes(byte[] bytes, int at) {
    return at + 3 < bytes.length && bytes[at] == '_' && bytes[at + 1] == 'x' && hex(bytes[at + 2]) && hex(bytes[at + 3]);
  }

  private static boolean hex(byte one) {
    return one >= '0' && one <= '9' || one >= 'A' && one <= 'F';
  }

  /** Without the settings: there may be secrets among them. */
  @Override
  public String toString() {
    return "kafka://" + servers + "/" + prefix;
  }
}
