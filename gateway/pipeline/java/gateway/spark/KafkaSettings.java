package gateway.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * The settings of librdkafka, which the data source in Python reads by, as those of Java's client. What has no counterpart is never
 * left out: it is Untranslatable, and who may choose takes the other reader.
 */
final class KafkaSettings {
  /** Why Spark's source cannot be told what was asked for. */
  static final class Untranslatable extends Exception {
    Untranslatable(String message) {
      super(message);
    }
  }

  private static final Set<String> SAME = Set.of(
      "client.id", "client.rack", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "socket.connection.setup.timeout.ms",
      "metadata.max.age.ms", "ssl.key.password");
  private static final String MODULES = "org.apache.kafka.common.security.";

  private final Map<String, String> given;
  private final Map<String, String> made = new HashMap<>();

  private KafkaSettings(Map<String, String> given) {
    this.given = new HashMap<>(given);
  }

  static Map<String, String> translated(Map<String, String> given) throws Untranslatable {
    KafkaSettings one = new KafkaSettings(given);
    one.connection();
    one.certificates();
    one.login();
    for (String name : one.given.keySet()) throw new Untranslatable("kafkaSettings has " + name);
    return one.made;
  }

  private void connection() throws Untranslatable {
    for (String name : SAME) put(name, given.remove(name));
    String protocol = given.remove("security.protocol");
    if (protocol != null) made.put("security.protocol", protocol.toUpperCase(Locale.ROOT));
    String patience = given.remove("socket.timeout.ms");
    if (patience != null && !patience.matches("[0-9]{1,9}")) throw new Untranslatable("socket.timeout.ms is no number of milliseconds");
    put("request.timeout.ms", patience);
  }

  private void put(String name, String value) {
    if (value != null) made.put(name, value);
  }

  /** Certificates are read here, so that executors need no files; those of librdkafka do. */
  private void certificates() throws Untranslatable {
    String roots = pem("ssl.ca"), chain = pem("ssl.certificate"), key = pem("ssl.key");
    if (roots != null) {
      made.put("ssl.truststore.type", "PEM");
      made.put("ssl.truststore.certificates", roots);
    }
    if (chain != null || key != null) {
      if (key == null || !key.contains("BEGIN PRIVATE KEY") && !key.contains("BEGIN ENCRYPTED PRIVATE KEY"))
        throw new Untranslatable("Java's client takes a key in PKCS#8 alone");
      if (chain == null) throw new Untranslatable("a key is there, and no certificate of it");
      made.put("ssl.keystore.type", "PEM");
      made.put("ssl.keystore.certificate.chain", chain);
      made.put("ssl.keystore.key", key);
    }
    String names = given.remove("ssl.endpoint.identification.algorithm");
    if (names != null) made.put("ssl.endpoint.identification.algorithm", names.equals("none") ? "" : names);
    String looks = given.remove("enable.ssl.certificate.verification");
    if (looks != null && !looks.equalsIgnoreCase("true"))
      throw new Untranslatable("Java's client cannot do without a look at certificates");
  }

  private String pem(String name) throws Untranslatable {
    String text = given.remove(name + ".pem"), path = given.remove(name + ".location");
    if (path == null) return text;
    try {
      return Files.readString(Path.of(path));
    } catch (IOException | InvalidPathException error) {
      throw new Untranslatable(name + ".location is no file that can be read as text");
    }
  }

  private void login() throws Untranslatable {
    String mechanism = given.remove("sasl.mechanism"), also = given.remove("sasl.mechanisms");
    if (mechanism == null) mechanism = also;
    if (mechanism == null) return;
    mechanism = mechanism.toUpperCase(Locale.ROOT);
    made.put("sasl.mechanism", mechanism);
    if (mechanism.equals("PLAIN") || mechanism.startsWith("SCRAM-")) {
      String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
      jaas(module, "username", given.remove("sasl.username"), "password", given.remove("sasl.password"));
    } else if (mechanism.equals("OAUTHBEARER") && "oidc".equalsIgnoreCase(given.remove("sasl.oauthbearer.method"))) {
      put("sasl.oauthbearer.token.endpoint.url", given.remove("sasl.oauthbearer.token.endpoint.url"));
      made.put("sasl.login.callback.handler.class", MODULES + "oauthbearer.OAuthBearerLoginCallbackHandler");
      jaas(
          "oauthbearer.OAuthBearerLoginModule", "clientId", given.remove("sasl.oauthbearer.client.id"), "clientSecret",
          given.remove("sasl.oauthbearer.client.secret"), "scope", given.remove("sasl.oauthbearer.scope"));
    } else {
      throw new Untranslatable("the mechanism is " + mechanism + (mechanism.equals("OAUTHBEARER") ? ", and not by oidc" : ""));
    }
  }

  private void jaas(String module, String... pairs) {
    StringBuilder text = new StringBuilder(MODULES).append(module).append(" required");
    for (int i = 0; i < pairs.length; i += 2)
      if (pairs[i + 1] != null)
        text.append(' ').append(pairs[i]).append("=\"").append(escaped(pairs[i + 1])).append('"');
    made.put("sasl.jaas.config", text.append(';').toString());
  }

  /** What is quoted ends with its line. */
  private static String escaped(String value) {
    return value.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n").replace("\r", "\\r");
  }
}
