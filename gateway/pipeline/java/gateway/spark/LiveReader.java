package gateway.spark;

import java.io.IOException;
import java.util.concurrent.TimeUnit;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The records of one partition as they come, for a query in real-time mode: it asks until its time is over. */
final class LiveReader implements SupportsRealTimeRead<InternalRow> {
  /** How long between two looks at a log that had nothing new: in a file it costs little, over HTTP a request. */
  private static final long HERE_MS = 5, THERE_MS = 50;

  /** What comes from an offset on. */
  static final class From implements InputPartition {
    final Range range;

    From(Range range) {
      this.range = range;
    }
  }

  /** How far it has been read. */
  static final class At implements PartitionOffset {
    final Range range;

    At(Range range) {
      this.range = range;
    }
  }

  private final Range range;
  private final StructType schema;
  private final boolean failOnDataLoss;
  private final Log log;
  private final long pauseMs;

  private RangeReader ready;
  private ColumnarBatch batch;
  private int row;
  private long next;
  private boolean over;

  LiveReader(Source source, From from, StructType schema, boolean failOnDataLoss) throws IOException {
    range = from.range;
    this.schema = schema;
    this.failOnDataLoss = failOnDataLoss;
    next = range.start;
    pauseMs = source.url.isEmpty() ? HERE_MS : THERE_MS;
    log = Log.open(source);
  }

  /** As Spark 4.2 asks, which says when the time began. */
  @Override
  public RecordStatus nextWithTimeout(Long startTimeMs, Long timeoutMs) throws IOException {
    return nextWithTimeout(timeoutMs);
  }

  /** As Spark 4.3 asks. */
  public RecordStatus nextWithTimeout(Long timeoutMs) throws IOException {
    long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    while (!next()) {
      long left = TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime());
      if (left <= 0) return RecordStatus.newStatusWithoutArrivalTime(false);
      try {
        TimeUnit.MILLISECONDS.sleep(Math.min(left, pauseMs));
      } catch (InterruptedException error) {
        throw new Stopped(error);
      }
    }
    return RecordStatus.newStatusWithoutArrivalTime(true);
  }

  /** Whether there is one now. */
  @Override
  public boolean next() throws IOException {
    while (batch == null || row + 1 >= batch.numRows()) {
      batch = null;
      if (ready != null && ready.next()) {
        batch = ready.get();
        row = -1;
      } else if (!more()) {
        return false;
      }
    }
    row++;
    next = ready.after() - (batch.numRows() - row - 1);
    return true;
  }

  /** Whether the log has grown. */
  private boolean more() throws IOException {
    if (ready != null) {
      next = Math.max(next, ready.after()); // what retention took is passed over
      ready.finish();
      ready = null;
    }
    if (over) return false;
    long end;
    try {
      end = log.partition(range).end;
    } catch (UnknownTopic error) {
      if (failOnDataLoss) throw new HistoryGone(range.topic + ": the topic was deleted, or deleted and made again, before it was read");
      over = true;
      return false;
    }
    if (end <= next) return false;
    Range fresh = new Range(range.topic, range.partition, next, end, range.epoch);
    ready = new RangeReader(log, fresh, schema, failOnDataLoss);
    return true;
  }

  @Override
  public InternalRow get() {
    return batch.getRow(row);
  }

  @Override
  public PartitionOffset getOffset() {
    return new At(range.from(next));
  }

  @Override
  public void close() throws IOException {
    try (log) {
      if (ready != null) ready.finish();
    }
  }
}
