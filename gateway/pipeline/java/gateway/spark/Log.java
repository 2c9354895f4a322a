package gateway.spark;

import java.io.Closeable;
import java.io.IOException;
import java.io.Serializable;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;

/** A log that is read: the directory of a store, a running gateway, or a Kafka. Not for two threads at a time. */
interface Log extends Closeable {
  /** [start, end) of a partition; bytes of its chunks. */
  final class Partition implements Serializable {
    final int number;
    final long start, end, bytes, slot;

    Partition(int number, long start, long end, long bytes, long slot) {
      this.number = number;
      this.start = start;
      this.end = end;
      this.bytes = bytes;
      this.slot = slot;
    }
  }

  final class Topic {
    final String name;
    final long epoch;
    final List<Partition> partitions;

    Topic(String name, long epoch, List<Partition> partitions) {
      this.name = name;
      this.epoch = epoch;
      this.partitions = partitions;
    }
  }

  /** A chunk as it is stored, not checked. */
  final class Stored {
    final long base;
    final int count;
    final byte[] data;

    Stored(long base, int count, byte[] data) {
      this.base = base;
      this.count = count;
      this.data = data;
    }
  }

  /** The chunks of a range, in order; null at its end. */
  interface Chunks extends Closeable {
    Stored next() throws IOException;
  }

  /** Whether a gap between offsets means that something is missing. */
  boolean dense() throws IOException;

  /** Those whose names are meant: where there are many, to look at all of them is dear. */
  Map<String, Topic> topics(Predicate<String> meant) throws IOException;

  /** The partition of a range as it is now. Raises UnknownTopic where the topic was deleted, or is another one by now. */
  Partition partition(Range range) throws IOException;

  /** From the chunk that holds the range's start on; the first may begin before it, the last end behind its end. */
  Chunks read(Range range) throws IOException;

  /** The first offset stored at or after a time; the end if there is none. */
  long offsetForTime(String topic, int partition, long milliseconds) throws IOException;

  /** What is between an offset that is not there and what is: [first, next). */
  long[] hole(Range range, long offset) throws IOException;

  static Log open(Source source) throws IOException {
    if (source.brokers != null) return new KafkaLog(source.brokers);
    return source.url.isEmpty() ? new StoreLog(source.path) : new EndpointLog(source);
  }
}
