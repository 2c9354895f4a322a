package gateway.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/** Offsets [start, end) of one partition of a topic, in one of its lives: what one task reads. */
final class Range implements InputPartition {
  final String topic;
  final int partition;
  final long start, end, epoch;

  Range(String topic, int partition, long start, long end, long epoch) {
    this.topic = topic;
    this.partition = partition;
    this.start = start;
    this.end = end;
    this.epoch = epoch;
  }

  Range from(long offset) {
    return new Range(topic, partition, offset, end, epoch);
  }

  Range within(long low, long high) {
    return new Range(topic, partition, Math.max(start, low), Math.min(end, high), epoch);
  }

  boolean empty() {
    return start >= end;
  }

  @Override
  public String toString() {
    return topic + "/" + partition + " [" + start + ", " + end + ")";
  }

  /** Ranges of at most so many offsets, so that several tasks share a long partition; at least so many ranges in all, where asked. */
  static List<Range> cut(List<Range> ranges, long records, int least) {
    long total = 0;
    for (Range one : ranges) total += Math.max(0, one.end - one.start);
    if (least > 0) records = Math.max(1, Math.min(records, (total + least - 1) / least));
    List<Range> found = new ArrayList<>();
    for (Range one : ranges)
      for (long start = one.start; start < one.end; start += records)
        found.add(one.within(start, start + records));
    return found;
  }
}
