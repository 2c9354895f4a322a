package gateway.spark;

import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Rows of Spark's own source for Kafka as rows of ours. */
final class KafkaReader implements PartitionReader<InternalRow> {
  /** The columns of a row of Spark's. */
  private static final int KEY = 0, VALUE = 1, TOPIC = 2, PARTITION = 3, OFFSET = 4, TIME = 5, HEADERS = 7;
  private static final byte[] NOTHING = {};
  /** What every record has. */
  private static final Set<String> KAFKAS = Set.of("topic", "partition", "offset", "timestamp", "key", "value");

  private final SparkKafka.Task task;
  private final PartitionReader<InternalRow> records;
  private final StructField[] columns;
  private final Envelope envelope = new Envelope();
  private final Map<String, Long> read = new HashMap<>();
  private UTF8String kafkas, topic;
  /** One row, anew for each record, as Spark's source gives them. */
  private final Object[] cells;
  private final InternalRow row;
  /** Whether a column is of what a gateway has said of the record. */
  private final boolean told;
  private boolean looked;

  KafkaReader(SparkKafka.Task task, StructType schema) {
    this.task = task;
    columns = schema.fields();
    cells = new Object[columns.length];
    row = new GenericInternalRow(cells);
    told = !KAFKAS.containsAll(List.of(schema.fieldNames()));
    records = task.by.createReader(task.part);
  }

  @Override
  public boolean next() throws IOException {
    if (!task.failOnDataLoss && !looked) {
      looked = true;
      if (!alive(task.epochs)) return false;
    }
    while (more()) {
      InternalRow one = records.get();
      UTF8String name = one.getUTF8String(TOPIC);
      if (!name.equals(kafkas)) { // once, for a task is of one partition
        kafkas = name.clone();
        topic = UTF8String.fromString(task.brokers.topic(kafkas.toString()));
        read.put(kafkas.toString(), task.epochs.get(kafkas.toString()));
      }
      ArrayData headers = one.isNullAt(HEADERS) ? null : one.getArray(HEADERS);
      if (told ? !envelope.of(headers) : !envelope.readable(headers)) continue;
      for (int i = 0; i < cells.length; i++) cells[i] = cell(one, headers, columns[i]);
      return true;
    }
    return false;
  }

  private boolean more() throws IOException {
    try {
      if (records.next()) return true;
    } catch (IllegalStateException error) {
      throw SparkKafka.translated(error, task.brokers, task.epochs.keySet());
    }
    // at the end: it may have been made again while it was read
    if (task.failOnDataLoss && !read.isEmpty() && !alive(read))
      throw new HistoryGone(topic + ": the topic was deleted, or deleted and made again, before it was read");
    read.clear();
    return false;
  }

  private boolean alive(Map<String, Long> epochs) throws IOException {
    try (KafkaLog log = new KafkaLog(task.brokers)) {
      log.alive(epochs);
      return true;
    } catch (UnknownTopic gone) {
      return false;
    }
  }

  private Object cell(InternalRow one, ArrayData headers, StructField column) {
    switch (column.name()) {
      case "topic":
        return topic;
      case "partition":
        return one.getInt(PARTITION);
      case "offset":
        return one.getLong(OFFSET);
      case "timestamp":
        return Math.max(0, one.getLong(TIME));
      case "expires":
        return envelope.expires == 0 ? null : envelope.expires * 1000;
      case "key":
        return one.isNullAt(KEY) ? null : one.getBinary(KEY);
      case "value":
        return one.isNullAt(VALUE) ? NOTHING : one.getBinary(VALUE);
      case "headers":
        return headers(headers, one.isNullAt(VALUE), (StructType) ((ArrayType) column.dataType()).elementType());
      case "id":
        String name = kafkas.toString();
        return envelope.id != null ? envelope.id
            : Envelope.foreignId(task.epochs.get(name), one.getInt(PARTITION), one.getLong(OFFSET), topic.toString());
      case "protocol":
        return envelope.origin.protocol;
      case "listener":
        return envelope.origin.listener;
      case "principal":
        return envelope.origin.principal;
      case "route":
        return envelope.origin.route;
      case "delivery":
        return envelope.origin.delivery;
      default:
        throw new InvalidRequest("a message has no column " + column.name());
    }
  }

  /** What is the producer's of them; only the fields of a pair that are asked for. */
  private Object headers(ArrayData found, boolean absent, StructType pair) {
    int count = found == null ? 0 : found.numElements() - envelope.own;
    Object[] pairs = new Object[count + (absent ? 1 : 0)];
    for (int i = 0; i < count; i++) {
      InternalRow one = found.getStruct(envelope.own + i, 2);
      pairs[i] = pair(pair, one.getUTF8String(0).clone(), one.isNullAt(1) ? NOTHING : one.getBinary(1));
    }
    if (absent) pairs[count] = pair(pair, Envelope.ABSENT, Envelope.ABSENT_VALUE);
    return new GenericArrayData(pairs);
  }

  private static InternalRow pair(StructType fields, UTF8String name, byte[] value) {
    Object[] cells = new Object[fields.length()];
    for (int i = 0; i < cells.length; i++) cells[i] = fields.fields()[i].name().equals("name") ? name : value;
    return new GenericInternalRow(cells);
  }

  @Override
  public InternalRow get() {
    return row;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return new CustomTaskMetric[0];
  }

  @Override
  public void close() throws IOException {
    records.close();
  }
}
