package gateway.spark;

import java.io.IOException;
import java.time.Instant;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Objects;
import java.util.Set;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.StringStartsWith;

/** What conditions say about places in the log. */
final class Narrowing {
  private static final Set<String> NEVER_NULL = Set.of(
      "topic", "partition", "offset", "timestamp", "value", "headers", "id", "protocol", "listener", "principal", "route", "delivery");
  private static final long LAST_MS = 1L << 53;

  /** Whether records are in the order of their times: on Kafka they have those of who wrote them. */
  private final boolean ordered;
  private Set<Object> topics, partitions;
  private String prefix = "";
  private long low = 0, high = Long.MAX_VALUE;
  private long fromMs = 0, beforeMs = Long.MAX_VALUE;

  Narrowing(boolean ordered) {
    this.ordered = ordered;
  }

  /** Take a condition into account. Whether it says no more than that: else Spark has to look at the rows as well. */
  boolean add(Filter one) {
    if (one instanceof IsNotNull f) return NEVER_NULL.contains(f.attribute());
    if (one instanceof EqualTo f) return f.value() != null && among(f.attribute(), f.value());
    if (one instanceof EqualNullSafe f) return f.value() != null && among(f.attribute(), f.value());
    if (one instanceof In f) {
      Object[] values = Arrays.stream(f.values()).filter(Objects::nonNull).toArray();
      return values.length > 0 && among(f.attribute(), values);
    }
    if (one instanceof StringStartsWith f && f.attribute().equals("topic") && (prefix.isEmpty() || f.value().startsWith(prefix))) {
      prefix = f.value();
      return true;
    }
    if (one instanceof GreaterThanOrEqual f) return from(f.attribute(), f.value(), 0);
    if (one instanceof GreaterThan f) return from(f.attribute(), f.value(), 1);
    if (one instanceof LessThan f) return before(f.attribute(), f.value(), 0);
    if (one instanceof LessThanOrEqual f) return before(f.attribute(), f.value(), 1);
    return false;
  }

  private boolean among(String column, Object... values) {
    Set<Object> found = new HashSet<>();
    for (Object value : values) found.add(column.equals("topic") ? value.toString() : value);
    switch (column) {
      case "topic":
        topics = both(topics, found);
        return true;
      case "partition":
        partitions = both(partitions, found);
        return true;
      case "offset":
      case "timestamp":
        Object first = values[0], last = values[0];
        for (Object value : values) {
          if (number(column, value) < number(column, first)) first = value;
          if (number(column, value) > number(column, last)) last = value;
        }
        return from(column, first, 0) & before(column, last, 1) && values.length == 1;
      default:
        return false;
    }
  }

  private static Set<Object> both(Set<Object> one, Set<Object> other) {
    if (one == null) return other;
    one.retainAll(other);
    return one;
  }

  private boolean from(String column, Object value, int more) {
    if (column.equals("offset")) {
      low = Math.max(low, plus(number(column, value), more));
      return true;
    }
    if (!column.equals("timestamp")) return false;
    fromMs = Math.max(fromMs, ceil(plus(number(column, value), more)));
    return ordered;
  }

  private boolean before(String column, Object value, int more) {
    if (column.equals("offset")) {
      high = Math.min(high, plus(number(column, value), more));
      return true;
    }
    if (!column.equals("timestamp")) return false;
    if (ordered) beforeMs = Math.min(beforeMs, ceil(plus(number(column, value), more)));
    return ordered;
  }

  /** Microseconds as the first millisecond that is not before them. */
  private static long ceil(long micros) {
    return -Math.floorDiv(-micros, 1000L);
  }

  private static long plus(long value, int more) {
    return value > Long.MAX_VALUE - more ? value : value + more;
  }

  /** An offset; or a time in microseconds. */
  private static long number(String column, Object value) {
    if (column.equals("offset")) return ((Number) value).longValue();
    Instant time = value instanceof Instant one ? one : ((java.sql.Timestamp) value).toInstant();
    long seconds = Math.max(-1L << 40, Math.min(1L << 40, time.getEpochSecond()));
    return seconds * 1_000_000 + time.getNano() / 1000;
  }

  /** Whether nothing of a file can be meant, whose records are stored in [fromMs, beforeMs). */
  boolean rulesOut(String topic, int partition, long start, long end, long fromMs, long beforeMs) {
    return topics != null && !topics.contains(topic) || partitions != null && !partitions.contains(partition)
        || !topic.startsWith(prefix) || end <= low || start >= high || beforeMs <= this.fromMs || fromMs >= this.beforeMs;
  }

  /** What is left of a range; it may be empty. */
  Range apply(Log log, Range range) throws IOException {
    boolean out = topics != null && !topics.contains(range.topic) || partitions != null && !partitions.contains(range.partition)
        || !range.topic.startsWith(prefix);
    Range left = out ? range.within(range.end, range.end) : range.within(low, high);
    if (!left.empty() && fromMs > 0)
      left = left.within(log.offsetForTime(range.topic, range.partition, Math.min(fromMs, LAST_MS)), range.end);
    if (!left.empty() && beforeMs < Long.MAX_VALUE)
      left = left.within(0, beforeMs <= 0 ? 0 : log.offsetForTime(range.topic, range.partition, Math.min(beforeMs, LAST_MS)));
    return left;
  }
}
