package gateway.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.CompositeReadLimit;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.ReadMinRows;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** Micro-batches, each of them a range of offsets that the checkpoint names. */
final class LogStream implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode, ReportsSourceMetrics {
  private final Options options;
  private final StructType schema;
  private final Path initial;
  private Position last;
  private long lastTriggerMs;
  private final String reader = UUID.randomUUID().toString();

  LogStream(Options options, StructType schema, String checkpoint) {
    this.options = options;
    this.schema = schema;
    initial = new Path(checkpoint, "gateway-initial-offsets");
  }

  /** For every topic its epoch and the next offset of each partition, as the Python side writes it too. */
  private static final class Position extends Offset {
    final TreeMap<String, Its> topics = new TreeMap<>();

    private static final class Its {
      final long epoch;
      final TreeMap<Integer, Long> next = new TreeMap<>();

      Its(long epoch) {
        this.epoch = epoch;
      }
    }

    /** As it is, or as Spark read it from a checkpoint. */
    static Position of(Offset offset) {
      return offset instanceof Position one ? one : of(offset.json());
    }

    static Position of(String json) {
      Position made = new Position();
      try {
        JsonNode found = Options.JSON.readTree(json);
        found.properties().forEach(topic -> {
          Its its = new Its(topic.getValue().path("epoch").asLong());
          topic.getValue().properties().forEach(one -> {
            if (!one.getKey().equals("epoch")) its.next.put(Integer.valueOf(one.getKey()), one.getValue().asLong());
          });
          made.topics.put(topic.getKey(), its);
        });
      } catch (IOException | NumberFormatException error) {
        throw new InvalidRequest("the checkpoint does not hold a position in a gateway's log: " + json);
      }
      return made;
    }

    @Override
    public String json() {
      ObjectNode made = Options.JSON.createObjectNode();
      topics.forEach((name, its) -> {
        ObjectNode one = made.putObject(name);
        one.put("epoch", its.epoch);
        its.next.forEach((number, offset) -> one.put(String.valueOf(number), offset));
      });
      return made.toString();
    }
  }

  private interface Work<T> {
    T on(Log log) throws IOException;
  }

  private <T> T on(Work<T> work) {
    try (Log log = Log.open(options.source)) {
      return work.on(log);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public Offset deserializeOffset(String json) {
    return Position.of(json);
  }

  /**
   * Where a query begins. It is kept beside the checkpoint: a driver that dies in the first batch must not begin later when it is
   * started again.
   */
  @Override
  public Offset initialOffset() {
    try {
      FileSystem files = initial.getFileSystem(SparkSession.active().sessionState().newHadoopConf());
      if (files.exists(initial)) {
        try (InputStream in = files.open(initial)) {
          return Position.of(new String(in.readAllBytes(), StandardCharsets.UTF_8));
        }
      }
      Options.Where where = options.starting == null ? Options.Where.LAST : options.starting;
      Position found = on(log -> {
        Position made = new Position();
        for (Log.Topic topic : Planning.selected(log.topics(options.topics::has), options, true)) {
          Position.Its its = new Position.Its(topic.epoch);
          for (long[] place : Planning.places(log, topic, options, where, true)) its.next.put((int) place[0], place[1]);
          made.topics.put(topic.name, its);
        }
        return made;
      });
      Path fresh = initial.suffix(".new");
      files.mkdirs(initial.getParent());
      try (OutputStream out = files.create(fresh, true)) {
        out.write(found.json().getBytes(StandardCharsets.UTF_8));
      }
      if (!files.rename(fresh, initial)) throw new IOException(initial + " cannot be written");
      return found;
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private Position ends(Log log, boolean strict) throws IOException {
    Position made = new Position();
    for (Log.Topic topic : Planning.selected(log.topics(options.topics::has), options, strict)) {
      Position.Its its = new Position.Its(topic.epoch);
      for (Log.Partition one : topic.partitions)
        if (options.topics.has(topic.name, one.number)) its.next.put(one.number, one.end);
      made.topics.put(topic.name, its);
    }
    return made;
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    List<ReadLimit> limits = new ArrayList<>();
    if (options.leastPerTrigger > 0) limits.add(ReadLimit.minRows(options.leastPerTrigger, options.delayMs));
    if (options.perTrigger > 0) limits.add(ReadLimit.maxRows(options.perTrigger));
    if (limits.isEmpty()) return ReadLimit.allAvailable();
    return limits.size() == 1 ? limits.get(0) : ReadLimit.compositeLimit(limits.toArray(new ReadLimit[0]));
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    last = on(log -> ends(log, options.failOnDataLoss));
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("latestOffset(start, limit)");
  }

  @Override
  public Offset latestOffset(Offset from, ReadLimit limit) {
    Position start = Position.of(from);
    return on(log -> {
      Position end = last != null ? last : ends(log, options.failOnDataLoss);
      Position begin = begins(log, start, end);
      if (options.failOnDataLoss) {
        Position all = new Position();
        all.topics.putAll(start.topics);
        all.topics.putAll(end.topics);
        end = all;
      }
      ReadLimit[] limits = limit instanceof CompositeReadLimit some ? some.getReadLimits() : new ReadLimit[] {limit};
      for (ReadLimit one : limits)
        if (one instanceof ReadMinRows least && last == null && tooFew(begin, end, least)) return start;
      for (ReadLimit one : limits) if (one instanceof ReadMaxRows most) end = limited(begin, end, most.maxRows());
      return end;
    });
  }

  private boolean tooFew(Position begin, Position end, ReadMinRows least) {
    long now = System.currentTimeMillis();
    if (waiting(begin, end) < least.minRows() && now - lastTriggerMs < least.maxTriggerDelayMs()) return true;
    lastTriggerMs = now;
    return false;
  }

  private static long waiting(Position begin, Position end) {
    long total = 0;
    for (Map.Entry<String, Position.Its> topic : end.topics.entrySet()) {
      Position.Its from = begin.topics.get(topic.getKey());
      if (from == null) continue;
      for (Map.Entry<Integer, Long> one : topic.getValue().next.entrySet())
        total += one.getValue() - from.next.getOrDefault(one.getKey(), one.getValue());
    }
    return total;
  }

  /** An end with at most so many offsets before it: each partition gives in proportion to what it has. */
  private static Position limited(Position begin, Position end, long most) {
    long total = waiting(begin, end);
    if (total <= most) return end;
    long left = most;
    for (Map.Entry<String, Position.Its> topic : begin.topics.entrySet())
      for (Map.Entry<Integer, Long> one : topic.getValue().next.entrySet())
        left -= share(end.topics.get(topic.getKey()).next.get(one.getKey()) - one.getValue(), most, total);
    Position made = new Position();
    for (Map.Entry<String, Position.Its> topic : end.topics.entrySet()) {
      Position.Its from = begin.topics.get(topic.getKey());
      if (from == null) {
        made.topics.put(topic.getKey(), topic.getValue());
        continue;
      }
      Position.Its its = new Position.Its(topic.getValue().epoch);
      for (Map.Entry<Integer, Long> one : topic.getValue().next.entrySet()) {
        long at = from.next.getOrDefault(one.getKey(), one.getValue()), has = one.getValue() - at;
        long given = share(has, most, total), more = Math.min(left, has - given);
        left -= more;
        its.next.put(one.getKey(), at + given + more);
      }
      made.topics.put(topic.getKey(), its);
    }
    return made;
  }

  private static long share(long has, long most, long total) {
    return Math.multiplyHigh(has, most) == 0 ? has * most / total : (long) ((double) has * most / total);
  }

  /** Where to go on in everything that `end` names; refuses, or passes over, what is gone. */
  private Position begins(Log log, Position start, Position end) throws IOException {
    Map<String, Log.Topic> topics = log.topics(name -> start.topics.containsKey(name) || end.topics.containsKey(name));
    List<String> lost = new ArrayList<>();
    for (String name : start.topics.keySet()) if (!topics.containsKey(name)) lost.add("the topic " + name + " was deleted");
    Position begin = new Position();
    end.topics.forEach((name, its) -> {
      Log.Topic topic = topics.get(name);
      Position.Its known = start.topics.get(name);
      if (topic == null) { // deleted: nothing of it can be read
        begin.topics.put(name, its);
        return;
      }
      if (known != null && known.epoch != its.epoch) {
        lost.add("the topic " + name + " was deleted and made again");
        known = null;
      }
      Position.Its from = new Position.Its(its.epoch);
      for (Map.Entry<Integer, Long> one : its.next.entrySet()) {
        int number = one.getKey();
        long offset = one.getValue();
        long first = topic.epoch == its.epoch && number < topic.partitions.size() ? topic.partitions.get(number).start : offset;
        long at = known == null ? 0 : known.next.getOrDefault(number, 0L);
        if (known != null && at < first) lost.add(name + "/" + number + " begins at " + first + " now, " + at + " is next");
        from.next.put(number, Math.min(Math.max(at, first), offset));
      }
      begin.topics.put(name, from);
    });
    if (!lost.isEmpty() && options.failOnDataLoss) throw new HistoryGone(String.join("; ", lost));
    return begin;
  }

  @Override
  public Offset reportLatestOffset() {
    return on(log -> ends(log, false));
  }

  @Override
  public InputPartition[] planInputPartitions(Offset from, Offset to) {
    Position end = Position.of(to);
    Position begin = on(log -> begins(log, Position.of(from), end));
    List<Range> ranges = new ArrayList<>();
    end.topics.forEach((name, its) -> its.next.forEach((number, offset) -> {
      long at = begin.topics.get(name).next.get(number);
      if (at < offset) ranges.add(new Range(name, number, at, offset, its.epoch));
    }));
    if (options.source.brokers != null) return SparkKafka.tasks(options, ranges, reader);
    return Range.cut(ranges, options.perPartition, options.leastPartitions).toArray(new InputPartition[0]);
  }

  // --- real-time mode: a micro-batch has no end before it is over ---

  @Override
  public InputPartition[] planInputPartitions(Offset from) {
    if (options.source.brokers != null) throw new InvalidRequest("real-time mode is for a store or an endpoint, not for a log on Kafka");
    Position start = Position.of(from);
    List<InputPartition> parts = new ArrayList<>();
    on(log -> {
      Position end = ends(log, options.failOnDataLoss);
      Position begin = begins(log, start, end);
      begin.topics.forEach((name, its) -> its.next.forEach(
          (number, offset) -> parts.add(new LiveReader.From(new Range(name, number, offset, Long.MAX_VALUE, its.epoch)))));
      return null;
    });
    return parts.toArray(new InputPartition[0]);
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] offsets) {
    Position made = new Position();
    for (PartitionOffset one : offsets) {
      Range at = ((LiveReader.At) one).range;
      made.topics.computeIfAbsent(at.topic, name -> new Position.Its(at.epoch)).next.put(at.partition, at.start);
    }
    return made;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new RangeReader.Factory(options, schema);
  }

  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {}

  /** How far behind the log a query is: by Kafka's names, for each partition, in bytes, and since when. */
  @Override
  public Map<String, String> metrics(Optional<Offset> consumed) {
    if (consumed.isEmpty()) return Map.of();
    Position at = Position.of(consumed.get());
    return on(log -> {
      TreeMap<String, String> found = new TreeMap<>();
      long total = 0, most = 0, least = Long.MAX_VALUE, bytes = 0, oldest = Long.MAX_VALUE;
      int count = 0;
      for (Log.Topic topic : Planning.selected(log.topics(options.topics::has), options, false)) {
        Position.Its its = at.topics.get(topic.name);
        for (Log.Partition one : topic.partitions) {
          if (!options.topics.has(topic.name, one.number)) continue;
          boolean known = its != null && its.epoch == topic.epoch;
          long next = Math.max(one.start, known ? its.next.getOrDefault(one.number, one.start) : one.start);
          long behind = Math.max(0, one.end - next);
          count++;
          total += behind;
          most = Math.max(most, behind);
          least = Math.min(least, behind);
          if (behind == 0) continue;
          found.put("lag." + topic.name + "/" + one.number, String.valueOf(behind));
          bytes += Math.round((double) one.bytes * behind / (one.end - one.start));
          oldest = Math.min(oldest, unread(log, topic, one, next));
        }
      }
      found.put("recordsBehind", String.valueOf(total));
      found.put("bytesBehind", String.valueOf(bytes));
      found.put("maxOffsetsBehindLatest", String.valueOf(most));
      found.put("minOffsetsBehindLatest", String.valueOf(count == 0 ? 0 : least));
      found.put("avgOffsetsBehindLatest", String.valueOf(count == 0 ? 0.0 : (double) total / count));
      if (oldest < Long.MAX_VALUE) found.put("oldestUnread", Instant.ofEpochMilli(oldest).toString());
      return found;
    });
  }

  /** Store time of the next record; what is gone or damaged by now is for the next batch to tell. */
  private static long unread(Log log, Log.Topic topic, Log.Partition one, long next) throws IOException {
    try {
      return Planning.timeAt(log, new Range(topic.name, one.number, next, one.end, topic.epoch), next);
    } catch (Problem error) {
      return Long.MAX_VALUE;
    }
  }
}
