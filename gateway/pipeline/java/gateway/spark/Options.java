package gateway.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.format.DateTimeParseException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.sql.types.StructType;

/** What a reader may be told; gateway/pipeline/options.py says the same for the Python side, in the same words. */
final class Options {
  static final ObjectMapper JSON = new ObjectMapper();

  /** In the JSON of offsets. */
  static final long EARLIEST = -2, LATEST = -1;

  static final int RECORDS_PER_PARTITION = 1_000_000;

  private static final List<String> PLACE =
      List.of("endpoint", "token", "tokenFile", "ca", "fingerprint", "insecure", "compression", "retryPatience");
  private static final List<String> NAMES = List.of(
      "path", "endpoint", "token", "tokenFile", "ca", "fingerprint", "insecure", "compression", "retryPatience", "history", "kafka",
      "kafkaPrefix", "kafkaSettings", "kafkaReader", "topics", "subscribe",
      "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
      "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
      "maxRecordsPerTrigger", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxRecordsPerPartition",
      "minPartitions", "includeHeaders", "failOnDataLoss", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs");

  /** An offset, or a time (milliseconds), for all partitions or for those that are named. */
  static final class Where {
    final long all;
    final Map<String, Map<Integer, Long>> named;
    final boolean times;

    Where(long all, Map<String, Map<Integer, Long>> named, boolean times) {
      this.all = all;
      this.named = named;
      this.times = times;
    }

    static final Where FIRST = new Where(EARLIEST, Map.of(), false), LAST = new Where(LATEST, Map.of(), false);
  }

  final Source source;
  final Topics topics;
  /** null: the earliest in a batch, the latest in a stream. */
  final Where starting;
  final Where ending;
  /** Whether a time behind the last record is an error. */
  final boolean strictTimes;
  final long perTrigger, leastPerTrigger, delayMs;
  final long perPartition;
  final int leastPartitions;
  final boolean headers, failOnDataLoss;
  /** Where the archive is whose records come before the log's; empty: none. */
  final String history;

  private final Map<String, String> given;

  Options(Map<String, String> options) {
    given = checked(options);
    source = source();
    topics = topics();
    starting = where("starting");
    Where end = where("ending");
    ending = end == null ? Where.LAST : end;
    String strategy = given.getOrDefault("startingoffsetsbytimestampstrategy", "latest").toLowerCase(Locale.ROOT);
    if (!Set.of("error", "latest").contains(strategy))
      throw new InvalidRequest("startingOffsetsByTimestampStrategy: error or latest, not " + quoted(strategy));
    strictTimes = strategy.equals("error");
    one("maxRecordsPerTrigger", "maxOffsetsPerTrigger");
    perTrigger = positive("maxRecordsPerTrigger", positive("maxOffsetsPerTrigger", 0));
    leastPerTrigger = positive("minOffsetsPerTrigger", 0);
    delayMs = duration("maxTriggerDelay", "15m");
    if (perTrigger > 0 && leastPerTrigger > perTrigger)
      throw new InvalidRequest("minOffsetsPerTrigger is more than maxOffsetsPerTrigger");
    perPartition = positive("maxRecordsPerPartition", RECORDS_PER_PARTITION);
    leastPartitions = (int) Math.min(Integer.MAX_VALUE, positive("minPartitions", 0));
    headers = flag("includeHeaders", true);
    failOnDataLoss = flag("failOnDataLoss", true);
    history = text("history");
    if (!history.isEmpty())
      for (String name : NAMES)
        if (name.matches("(starting|ending).*") && has(name))
          throw new InvalidRequest("history and " + name + " exclude each other: all there is is read, but for what conditions rule out");
  }

  StructType columns() {
    return history.isEmpty() ? Columns.ALL : Columns.WITH_EPOCH;
  }

  private static Map<String, String> checked(Map<String, String> options) {
    Map<String, String> given = new HashMap<>();
    options.forEach((name, value) -> given.put(name.toLowerCase(Locale.ROOT), value));
    Set<String> unknown = new TreeSet<>(given.keySet());
    NAMES.forEach(name -> unknown.remove(name.toLowerCase(Locale.ROOT)));
    if (!unknown.isEmpty())
      throw new InvalidRequest("unknown option " + String.join(", ", unknown) + "; there are " + String.join(", ", NAMES));
    return given;
  }

  private String text(String name) {
    return given.getOrDefault(name.toLowerCase(Locale.ROOT), "");
  }

  private boolean has(String name) {
    return given.containsKey(name.toLowerCase(Locale.ROOT));
  }

  /** Which of some names of one thing is given; null for none. */
  private String one(String... names) {
    List<String> found = new ArrayList<>();
    for (String name : names) if (has(name)) found.add(name);
    if (found.size() > 1) throw new InvalidRequest(String.join(" and ", found) + " exclude each other");
    return found.isEmpty() ? null : found.get(0);
  }

  // --- where the log is ---

  private Source source() {
    String path = text("path"), url = text("endpoint");
    if (!text("kafka").isEmpty()) return kafka();
    if (!path.isEmpty() && !url.isEmpty())
      throw new InvalidRequest("path and endpoint exclude each other: the directory of a store, or a running gateway");
    if (!url.isEmpty()) return endpoint(url);
    if (path.isEmpty())
      throw new InvalidRequest("the option path is needed (the directory of a store), or endpoint (a running gateway)");
    if (path.startsWith("http://") || path.startsWith("https://"))
      throw new InvalidRequest("path: the directory of a store, not " + path + ": a running gateway is the option endpoint");
    List<String> lost = new ArrayList<>();
    for (String name : PLACE) if (has(name)) lost.add(name);
    if (!lost.isEmpty()) throw new InvalidRequest(String.join(", ", lost) + ": about an endpoint, not about a path");
    return new Source(path.startsWith("file:") ? URI.create(path).getPath() : path, "", "", "", "", false, false, 0, 0);
  }

  private Source kafka() {
    List<String> others = new ArrayList<>();
    for (String name : PLACE) if (has(name)) others.add(name);
    if (has("path")) others.add(0, "path");
    if (!others.isEmpty())
      throw new InvalidRequest(String.join(", ", others) + " and kafka exclude each other: brokers hold the log themselves");
    if (!text("history").isEmpty()) throw new InvalidRequest(SparkKafka.NO_HISTORY);
    try {
      Map<String, String> settings = KafkaSettings.translated(kafkaSettings(text("kafkaSettings")));
      return new Source(new Brokers(text("kafka"), has("kafkaPrefix") ? text("kafkaPrefix") : "gw.", settings));
    } catch (KafkaSettings.Untranslatable error) {
      throw new InvalidRequest("kafkaReader: Spark's own source cannot read this: " + error.getMessage());
    }
  }

  /** Those of librdkafka. */
  static Map<String, String> kafkaSettings(String text) {
    Map<String, String> found = new TreeMap<>();
    if (text == null || text.isEmpty()) return found;
    JsonNode given = json("kafkaSettings", text);
    given.properties().forEach(one -> found.put(one.getKey(), one.getValue().textValue()));
    if (!given.isObject() || found.containsValue(null))
      throw new InvalidRequest("kafkaSettings: JSON like {\"security.protocol\": \"ssl\"}, of librdkafka's own settings");
    return found;
  }

  private Source endpoint(String url) {
    URI parts;
    try {
      parts = new URI(url);
    } catch (java.net.URISyntaxException error) {
      throw new InvalidRequest("endpoint: " + quoted(url) + ": " + error.getReason());
    }
    String scheme = String.valueOf(parts.getScheme()), host = parts.getHost();
    String below = parts.getPath() == null ? "" : parts.getPath().replace("/", "");
    if (!Set.of("http", "https").contains(scheme) || host == null || parts.getQuery() != null || !below.isEmpty())
      throw new InvalidRequest("endpoint: a gateway's admin address, like http://127.0.0.1:9600, not " + quoted(url));
    boolean insecure = flag("insecure", false);
    if ((!text("ca").isEmpty() || !text("fingerprint").isEmpty() || insecure) && !scheme.equals("https"))
      throw new InvalidRequest("endpoint: " + url + " has no TLS that ca, fingerprint or insecure could be about");
    String token = text("token");
    if (token.isEmpty() && has("tokenFile")) token = file("tokenFile", "token file").strip();
    if (token.isEmpty()) token = System.getenv().getOrDefault("GATEWAY_TOKEN", "");
    double patience = has("retryPatience") ? duration("retryPatience", "10s") / 1000.0 : 10.0;
    if (has("fetchOffset.numRetries") || has("fetchOffset.retryIntervalMs"))
      patience = positive("fetchOffset.numRetries", 3) * positive("fetchOffset.retryIntervalMs", 1000) / 1000.0;
    String compression = has("compression") ? text("compression").toLowerCase(Locale.ROOT) : "none";
    if (!Set.of("none", "gzip").contains(compression))
      throw new InvalidRequest("compression: none or gzip, not " + quoted(compression));
    return new Source(
        "", scheme + "://" + host + ":" + (parts.getPort() < 0 ? 9600 : parts.getPort()), token,
        text("ca").isEmpty() ? "" : file("ca", "ca"), text("fingerprint").replace(":", "").toLowerCase(Locale.ROOT), insecure,
        compression.equals("gzip"), 60, patience);
  }

  private String file(String name, String what) {
    try {
      return Files.readString(Path.of(text(name)));
    } catch (IOException error) {
      throw new InvalidRequest("endpoint: the " + what + " " + text(name) + " cannot be read: " + error.getMessage());
    }
  }

  // --- which topics ---

  static final class Topics {
    private final Set<String> names = new TreeSet<>();
    private final List<Pattern> patterns = new ArrayList<>();
    /** Partitions of each; null: all. */
    final Map<String, Set<Integer>> only;

    Topics(Map<String, Set<Integer>> only) {
      this.only = only;
    }

    Set<String> named() {
      return names;
    }

    /** The gateway's own (`__...`) only where they are named in full. */
    boolean has(String topic) {
      if (names.contains(topic)) return true;
      return !topic.startsWith("__") && patterns.stream().anyMatch(one -> one.matcher(topic).matches());
    }

    boolean has(String topic, int partition) {
      return only == null || only.getOrDefault(topic, Set.of()).contains(partition);
    }
  }

  private Topics topics() {
    String how = one("topics", "subscribe", "subscribePattern", "assign");
    if ("assign".equals(how)) {
      Map<String, Set<Integer>> only = new TreeMap<>();
      JsonNode found = json("assign");
      String hint = "assign: JSON like {\"orders\": [0, 1]}, not " + quoted(text("assign"));
      if (!found.isObject() || found.isEmpty()) throw new InvalidRequest(hint);
      found.properties().forEach(topic -> {
        Set<Integer> numbers = only.computeIfAbsent(topic.getKey(), name -> new TreeSet<>());
        if (!topic.getValue().isArray() || topic.getValue().isEmpty()) throw new InvalidRequest(hint);
        for (JsonNode number : topic.getValue()) {
          if (!number.canConvertToInt() || !number.isInt() || number.intValue() < 0) throw new InvalidRequest(hint);
          numbers.add(number.intValue());
        }
      });
      Topics topics = new Topics(only);
      topics.names.addAll(only.keySet());
      return topics;
    }
    Topics topics = new Topics(null);
    if ("subscribePattern".equals(how)) {
      try {
        topics.patterns.add(Pattern.compile(text("subscribePattern")));
      } catch (PatternSyntaxException error) {
        throw new InvalidRequest("subscribePattern: " + error.getMessage());
      }
      return topics;
    }
    boolean exact = "subscribe".equals(how);
    for (String name : list(exact ? "subscribe" : "topics", how == null ? "**" : text(how))) {
      if (!exact && name.contains("*")) topics.patterns.add(glob(name));
      else topics.names.add(name);
    }
    return topics;
  }

  private static List<String> list(String option, String text) {
    List<String> found = new ArrayList<>();
    if (text.stripLeading().startsWith("[")) {
      JsonNode array = json(option, text);
      for (JsonNode one : array) {
        if (!one.isTextual() || one.textValue().isEmpty())
          throw new InvalidRequest(option + ": a JSON array of names or globs, not " + text);
        found.add(one.textValue());
      }
      return found;
    }
    for (String name : text.split(",")) if (!name.isBlank()) found.add(name.strip());
    if (found.isEmpty()) throw new InvalidRequest(option + ": at least one name or glob");
    return found;
  }

  /** `*` is one or more characters but `.` and `/`, `**` is anything. */
  static Pattern glob(String text) {
    StringBuilder made = new StringBuilder();
    Matcher star = Pattern.compile("\\*\\*|\\*").matcher(text);
    int at = 0;
    for (; star.find(); at = star.end())
      made.append(Pattern.quote(text.substring(at, star.start()))).append(star.group().length() == 2 ? ".*" : "[^./]+");
    return Pattern.compile(made + Pattern.quote(text.substring(at)), Pattern.DOTALL);
  }

  // --- from where to where ---

  private Where where(String which) {
    String offsets = which + "Offsets", time = which + "Timestamp", times = which + "OffsetsByTimestamp";
    String how = one(offsets, time, times);
    if (how == null) return null;
    if (how.equals(time)) return new Where(milliseconds(text(time)), Map.of(), true);
    String text = text(how);
    boolean byTime = how.equals(times);
    if (!byTime && text.equalsIgnoreCase("earliest")) return Where.FIRST;
    if (!byTime && text.equalsIgnoreCase("latest")) return Where.LAST;
    String hint = byTime
        ? how + ": JSON like {\"orders\": {\"0\": 1700000000000}}"
        : how + ": earliest, latest, or JSON like {\"orders\": {\"0\": 17, \"1\": -2}} (-2 earliest, -1 latest)";
    JsonNode found = text.stripLeading().startsWith("{") ? json(how, text) : null;
    if (found == null || !found.isObject()) throw new InvalidRequest(hint + ", not " + quoted(text));
    Map<String, Map<Integer, Long>> named = new HashMap<>();
    found.properties().forEach(topic -> {
      Map<Integer, Long> its = named.computeIfAbsent(topic.getKey(), name -> new HashMap<>());
      if (!topic.getValue().isObject()) throw new InvalidRequest(hint);
      topic.getValue().properties().forEach(one -> {
        JsonNode value = one.getValue();
        if (!one.getKey().matches("\\d{1,9}") || !value.isIntegralNumber() || value.longValue() < (byTime ? 0 : EARLIEST))
          throw new InvalidRequest(
              hint + "; " + topic.getKey() + " has " + quoted(one.getKey()) + ": "
                  + (value.isTextual() ? quoted(value.textValue()) : value));
        its.put(Integer.valueOf(one.getKey()), value.longValue());
      });
    });
    return new Where(which.equals("starting") ? EARLIEST : LATEST, named, byTime);
  }

  static long milliseconds(String text) {
    if (text.matches("\\d{1,18}")) return Long.parseLong(text);
    String iso = text.strip().replace(' ', 'T');
    try {
      if (iso.matches("\\d{4}-\\d{2}-\\d{2}")) return LocalDate.parse(iso).atStartOfDay().toInstant(ZoneOffset.UTC).toEpochMilli();
      if (iso.matches(".*T.*(Z|[+-]\\d{2}:?\\d{2})")) return OffsetDateTime.parse(iso).toInstant().toEpochMilli();
      return LocalDateTime.parse(iso).toInstant(ZoneOffset.UTC).toEpochMilli();
    } catch (DateTimeParseException error) {
      throw new InvalidRequest("not a time: " + quoted(text) + " (milliseconds since the epoch, or 2024-01-31T12:00:00)");
    }
  }

  // --- values ---

  static String quoted(String text) {
    return "'" + text + "'";
  }

  private JsonNode json(String name) {
    return json(name, text(name));
  }

  private static JsonNode json(String option, String text) {
    try {
      return JSON.readTree(text);
    } catch (JsonProcessingException error) {
      throw new InvalidRequest(option + " is not JSON: " + error.getOriginalMessage());
    }
  }

  private long positive(String name, long otherwise) {
    if (!has(name)) return otherwise;
    String text = text(name);
    if (!text.matches("\\d{1,18}") || Long.parseLong(text) < 1)
      throw new InvalidRequest(name + ": a number from 1 on, not " + quoted(text));
    return Long.parseLong(text);
  }

  private long duration(String name, String otherwise) {
    String text = has(name) ? text(name) : otherwise;
    try {
      return JavaUtils.timeStringAs(text, TimeUnit.MILLISECONDS);
    } catch (NumberFormatException error) {
      throw new InvalidRequest(name + ": a time like 30s or 15m, not " + quoted(text));
    }
  }

  private boolean flag(String name, boolean otherwise) {
    return has(name) ? truth(name, text(name)) : otherwise;
  }

  private static boolean truth(String name, String text) {
    if (!Set.of("true", "false").contains(text.toLowerCase(Locale.ROOT)))
      throw new InvalidRequest(name + ": true or false, not " + quoted(text));
    return Boolean.parseBoolean(text.toLowerCase(Locale.ROOT));
  }
}
