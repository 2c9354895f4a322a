package gateway.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Ranges of a log on Kafka as tasks of Spark's own source for Kafka, whose records become our columns.
 *
 * <p>What to read is decided here, by the log, the options and the checkpoint, as for every other log: Spark's source is told the
 * offsets of each partition, and reads them. It is used by Spark's interfaces for data sources alone, so it is that of the Spark that
 * runs, whichever it is.
 */
final class SparkKafka {
  private static final String CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider";
  /** One of each jar that it needs. */
  private static final List<String> CLASSES = List.of(
      CLASS, "org.apache.kafka.clients.admin.Admin", "org.apache.spark.kafka010.KafkaConfigUpdater", "org.apache.commons.pool2.ObjectPool");
  /**
   * It asks where a partition begins and ends at each poll: so a poll brings all that one fetch has. The answer comes behind that to
   * the next fetch, which was sent meanwhile, and at the end of what there is waits for more: so that is to be short. What half a region
   * of the heap does not hold (a region is 1 MiB where the heap is 1 GiB, as a driver's is) costs the collector several times as much as
   * all else.
   */
  private static final Map<String, String> FETCHES = Map.of(
      "kafka.max.poll.records", "1000000", "kafka.max.partition.fetch.bytes", "480000", "kafka.fetch.max.wait.ms", "10",
      "kafka.isolation.level", "read_committed");

  /** The partition that a task of Spark's source says it is of. */
  private static final Pattern PLACE = Pattern.compile("KafkaOffsetRange\\(([^,()]+)-\\d+,");

  static final String NO_HISTORY = "history and a log on Kafka are read together by the data source in Python";
  private static final Logger LOG = LoggerFactory.getLogger(GatewaySource.class);

  private SparkKafka() {}

  /** Whether it reads what these options mean, and not the data source in Python: what `kafkaReader` says, or what is to be had. */
  static boolean reads(CaseInsensitiveStringMap options) {
    String asked = options.getOrDefault("kafkaReader", "auto").toLowerCase(Locale.ROOT);
    if (!Set.of("auto", "spark", "gateway").contains(asked))
      throw new InvalidRequest("kafkaReader: auto, spark or gateway, not " + Options.quoted(asked));
    String why = asked.equals("gateway") ? "kafkaReader says so" : whyNot(options);
    if (why != null && asked.equals("spark")) throw new InvalidRequest("kafkaReader: " + why);
    if (why == null) LOG.info("the log on Kafka {} is read by Spark's own source for Kafka", options.get("kafka"));
    else LOG.info("the log on Kafka {} is read by the data source in Python: {}", options.get("kafka"), why);
    return why == null;
  }

  private static String whyNot(CaseInsensitiveStringMap options) {
    String missing = missing();
    if (missing != null) return missing;
    if (options.containsKey("history")) return NO_HISTORY;
    try {
      KafkaSettings.translated(Options.kafkaSettings(options.get("kafkaSettings")));
      return null;
    } catch (KafkaSettings.Untranslatable error) {
      return error.getMessage();
    }
  }

  /** Why it is not to be had; null where it is. */
  private static String missing() {
    ClassLoader here = SparkKafka.class.getClassLoader();
    for (String name : CLASSES) {
      try {
        Class.forName(name, false, here);
      } catch (ClassNotFoundException | LinkageError error) {
        return "Spark's own source for Kafka is not on the class path with all that it needs "
            + "(spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:" + org.apache.spark.package$.MODULE$.SPARK_VERSION() + ")";
      }
    }
    return null;
  }

  /** Offsets of partitions, each at most once. `reader` tells readers apart that may be at the same offsets. */
  static InputPartition[] tasks(Options options, List<Range> ranges, String reader) {
    if (ranges.isEmpty()) return new InputPartition[0];
    Brokers brokers = options.source.brokers;
    Map<String, Long> epochs = new TreeMap<>();
    ObjectNode parts = Options.JSON.createObjectNode(), starts = parts.objectNode(), ends = parts.objectNode();
    for (Range one : ranges) {
      String name = brokers.named(one.topic);
      epochs.put(name, one.epoch);
      parts.withArray(name).add(one.partition);
      starts.withObjectProperty(name).put(String.valueOf(one.partition), one.start);
      ends.withObjectProperty(name).put(String.valueOf(one.partition), one.end);
    }
    Map<String, String> told = new HashMap<>(FETCHES);
    brokers.client().forEach((name, value) -> told.put("kafka." + name, value));
    told.put("assign", parts.toString());
    told.put("startingOffsets", starts.toString());
    told.put("endingOffsets", ends.toString());
    told.put("includeHeaders", "true");
    told.put("failOnDataLoss", String.valueOf(options.failOnDataLoss));
    told.put("maxRecordsPerPartition", String.valueOf(options.perPartition));
    if (options.leastPartitions > 0) told.put("minPartitions", String.valueOf(options.leastPartitions));
    // another life of a topic has other records at the same offsets, and executors keep what they have read ahead for its readers
    told.put("kafka.group.id", brokers.prefix + "__gateway.reads-" + reader + "-" + Long.toHexString(epochs.hashCode()));
    Batch batch = batch(new CaseInsensitiveStringMap(told));
    PartitionReaderFactory by = batch.createReaderFactory();
    InputPartition[] planned;
    try {
      planned = batch.planInputPartitions();
    } catch (IllegalStateException error) {
      throw translated(error, brokers, epochs.keySet());
    }
    return Arrays.stream(planned)
        .map(part -> new Task(part, by, brokers, its(part, epochs), options.failOnDataLoss))
        .toArray(InputPartition[]::new);
  }

  /** Of these topics its own, where it says which that is: each task travels with what it has, and asks Kafka about all of that. */
  private static Map<String, Long> its(InputPartition part, Map<String, Long> epochs) {
    Matcher found = PLACE.matcher(part.toString());
    return found.find() && epochs.containsKey(found.group(1)) ? Map.of(found.group(1), epochs.get(found.group(1))) : epochs;
  }

  /** What Spark's source says of records that are no longer there, in our words. */
  static RuntimeException translated(IllegalStateException error, Brokers brokers, Collection<String> names) {
    if (!error.getClass().getSimpleName().equals("KafkaIllegalStateException")) return error;
    String topics = names.stream().map(brokers::topic).collect(Collectors.joining(", "));
    return new HistoryGone(topics + ": the log does not hold all that was to be read");
  }

  private static Batch batch(CaseInsensitiveStringMap told) {
    try {
      TableProvider source = (TableProvider) Class.forName(CLASS).getConstructor().newInstance();
      SupportsRead table = (SupportsRead) source.getTable(source.inferSchema(told), new Transform[0], told);
      return table.newScanBuilder(told).build().toBatch();
    } catch (ReflectiveOperationException error) {
      throw new StoreReadOnly("Spark's own source for Kafka: " + error);
    }
  }

  /** Some offsets of one partition, as Spark's source has them. */
  static final class Task implements InputPartition {
    final InputPartition part;
    final PartitionReaderFactory by;
    final Brokers brokers;
    /** By Kafka's name: of its topic, or of all of them. */
    final Map<String, Long> epochs;
    final boolean failOnDataLoss;

    Task(InputPartition part, PartitionReaderFactory by, Brokers brokers, Map<String, Long> epochs, boolean failOnDataLoss) {
      this.part = part;
      this.by = by;
      this.brokers = brokers;
      this.epochs = epochs;
      this.failOnDataLoss = failOnDataLoss;
    }

    @Override
    public String[] preferredLocations() {
      return part.preferredLocations();
    }

    PartitionReader<InternalRow> reader(StructType schema) throws IOException {
      return new KafkaReader(this, schema);
    }
  }
}
