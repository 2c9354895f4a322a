package gateway.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.SerializableConfiguration;
import org.apache.spark.unsafe.types.UTF8String;

/** The records of a range, a chunk at a time. What is gone (retention, a topic made anew) is HistoryGone, or left out. */
final class RangeReader implements PartitionReader<ColumnarBatch> {
  private final Log log;
  private final Range range;
  private final StructType schema;
  private final boolean failOnDataLoss;
  private final UTF8String topic;

  private Log.Chunks chunks;
  private long offset, bytes, read;
  private Chunk chunk;
  private int skip, rows;

  RangeReader(Source source, Range range, StructType schema, boolean failOnDataLoss) throws IOException {
    this(Log.open(source), range, schema, failOnDataLoss);
  }

  /** Of a log that is open, and is closed with this. */
  RangeReader(Log log, Range range, StructType schema, boolean failOnDataLoss) {
    this.log = log;
    this.range = range;
    this.schema = schema;
    this.failOnDataLoss = failOnDataLoss;
    topic = UTF8String.fromString(range.topic);
    offset = range.start;
  }

  @Override
  public boolean next() throws IOException {
    while (offset < range.end) {
      try {
        if (chunks == null) chunks = log.read(range.from(offset));
        Log.Stored stored = chunks.next();
        if (stored == null) {
          if (!log.dense()) return false; // the last offsets of a range may be a gap
          throw ended();
        }
        long end = stored.base + stored.count;
        if (end <= offset || stored.base > offset && log.dense())
          throw new CorruptChunk(range.topic, range.partition, offset, Math.max(stored.base, offset + 1));
        chunk = Chunk.checked(stored, range.topic, range.partition);
        long first = Math.max(offset, stored.base);
        skip = (int) (first - stored.base);
        rows = (int) (Math.min(end, range.end) - first);
        offset = Math.min(end, range.end);
        read++;
        bytes += stored.data.length;
        if (rows > 0) return true;
      } catch (CorruptChunk error) {
        throw new Damaged(error);
      } catch (UnknownTopic error) {
        if (failOnDataLoss) throw new HistoryGone(range + ": the topic was deleted, or deleted and made again, before it was read");
        return false;
      } catch (OffsetOutOfRange error) {
        if (failOnDataLoss) throw new HistoryGone(range + ": the log begins at " + error.first + " now");
        offset = Math.max(error.first, offset + 1); // always on: retention may be as fast as we are
        chunks.close();
        chunks = null;
      }
    }
    return false;
  }

  /** The offset behind what was given out last. */
  long after() {
    return offset;
  }

  private Problem ended() throws IOException {
    Log.Partition now = log.topics(range.topic::equals).get(range.topic).partitions.get(range.partition);
    return new Problem(range + ": the log holds [" + now.start + ", " + now.end + ")");
  }

  @Override
  public ColumnarBatch get() {
    return Columns.batch(chunk, topic, range, schema, skip, rows);
  }

  /** Let go of what it has read ahead, and not of the log. */
  void finish() throws IOException {
    if (chunks != null) chunks.close();
    chunks = null;
  }

  @Override
  public void close() throws IOException {
    try (log) {
      finish();
    }
  }

  // --- figures ---

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return new CustomTaskMetric[] {new Figure("chunksRead", read), new Figure("storedBytesRead", bytes)};
  }

  static CustomMetric[] metrics() {
    return new CustomMetric[] {new ChunksRead(), new StoredBytesRead()};
  }

  private record Figure(String name, long value) implements CustomTaskMetric {}

  /** Spark makes one of its own by the name of the class. */
  public static final class ChunksRead extends CustomSumMetric {
    @Override
    public String name() {
      return "chunksRead";
    }

    @Override
    public String description() {
      return "number of chunks read";
    }
  }

  /** As they are stored. */
  public static final class StoredBytesRead extends CustomSumMetric {
    @Override
    public String name() {
      return "storedBytesRead";
    }

    @Override
    public String description() {
      return "bytes of chunks read";
    }
  }

  /** Makes readers on executors. */
  static final class Factory implements PartitionReaderFactory {
    private final Source source;
    private final StructType schema;
    private final boolean failOnDataLoss;

    /** How an archive's file system is reached; null where there is no archive. */
    private final SerializableConfiguration hadoop;

    Factory(Options options, StructType schema) {
      source = options.source;
      this.schema = schema;
      failOnDataLoss = options.failOnDataLoss;
      hadoop = options.history.isEmpty() ? null : new SerializableConfiguration(Archive.hadoop());
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      try {
        if (partition instanceof SparkKafka.Task task) return task.reader(schema);
        if (!(partition instanceof LiveReader.From from)) throw new UnsupportedOperationException("columns, not rows");
        return new LiveReader(source, from, schema, failOnDataLoss);
      } catch (IOException error) {
        throw new java.io.UncheckedIOException(error);
      }
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return !(partition instanceof LiveReader.From || partition instanceof SparkKafka.Task);
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      try {
        if (partition instanceof Archive.File file) return new ArchiveReader(file, schema, hadoop.value());
        return new RangeReader(source, (Range) partition, schema, failOnDataLoss);
      } catch (IOException error) {
        throw new java.io.UncheckedIOException(error);
      }
    }
  }
}
