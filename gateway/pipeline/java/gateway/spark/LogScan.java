package gateway.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** What is read of the log, as of the moment of planning. */
final class LogScan implements Scan, Batch, SupportsReportStatistics {
  private final Options options;
  private final StructType schema;
  private final Narrowing narrowing;
  private final Filter[] pushed;
  private final long limit;
  private boolean streams;
  private List<Range> planned;
  private List<Archive.File> files = List.of();

  private LogScan(Options options, StructType schema, Narrowing narrowing, Filter[] pushed, long limit) {
    this.options = options;
    this.schema = schema;
    this.narrowing = narrowing;
    this.pushed = pushed;
    this.limit = limit;
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public String description() {
    String by = options.source.brokers == null ? "" : " by Spark's own source for Kafka";
    return "gateway " + options.source + by + ", pushed: " + Arrays.toString(pushed) + ", columns: " + schema.catalogString();
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    if (!options.history.isEmpty())
      throw new InvalidRequest("history is for a batch: a stream reads the log; an archive is a stream of Parquet files to Spark");
    streams = true;
    return new LogStream(options, schema, checkpoint);
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    if (options.source.brokers != null) return ColumnarSupportMode.UNSUPPORTED;
    // in real-time mode a stream gives rows, each when it comes
    return streams ? ColumnarSupportMode.PARTITION_DEFINED : ColumnarSupportMode.SUPPORTED;
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return options.source.brokers == null ? RangeReader.metrics() : new CustomMetric[0];
  }

  /** Ranges that conditions leave, once for a scan: its statistics are of what is read. */
  private synchronized List<Range> ranges() {
    if (planned == null) {
      try (Log log = Log.open(options.source)) {
        if (options.history.isEmpty()) {
          planned = left(log, options, narrowing);
        } else {
          Archive archive = new Archive(options.history); // before the log: what is added meanwhile is read from there
          planned = behind(archive, log);
          files = archive.files(options, narrowing);
        }
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
    return planned;
  }

  private static List<Range> left(Log log, Options options, Narrowing narrowing) throws IOException {
    List<Range> found = new ArrayList<>();
    for (Range one : Planning.whole(log, options)) {
      Range narrowed = narrowing.apply(log, one);
      if (!narrowed.empty()) found.add(narrowed);
    }
    return found;
  }

  /** What the log has and the archive has not. */
  private List<Range> behind(Archive archive, Log log) throws IOException {
    Map<String, Log.Topic> topics = log.topics(options.topics::has);
    TreeSet<String> missing = new TreeSet<>(options.topics.named());
    missing.removeAll(topics.keySet());
    missing.removeAll(archive.topics());
    if (!missing.isEmpty())
      throw new UnknownTopic("there is no topic " + String.join(", ", missing) + " in " + options.source + " or " + options.history);
    List<Range> found = new ArrayList<>();
    List<String> lost = new ArrayList<>();
    for (Log.Topic topic : Planning.selected(topics, options, false)) {
      for (Log.Partition one : topic.partitions) {
        if (!options.topics.has(topic.name, one.number)) continue;
        String place = Archive.place(topic.name, topic.epoch, one.number);
        long done = archive.ends.getOrDefault(place, one.start);
        if (done < one.start && !archive.accepts(place, done, one.start))
          lost.add(topic.name + "/" + one.number + " [" + done + ", " + one.start + ")");
        Range range = new Range(topic.name, one.number, Math.max(done, one.start), one.end, topic.epoch);
        if (!range.empty()) range = narrowing.apply(log, range);
        if (!range.empty()) found.add(range);
      }
    }
    if (!lost.isEmpty() && options.failOnDataLoss) throw new HistoryGone(String.join("; ", lost) + ": removed before it was archived");
    return found;
  }

  @Override
  public Statistics estimateStatistics() {
    long rows = 0;
    for (Range one : ranges()) rows += one.end - one.start;
    for (Archive.File one : files) rows += one.end - one.start;
    long found = rows;
    return new Statistics() {
      @Override
      public OptionalLong sizeInBytes() {
        return OptionalLong.of(Math.max(1, found) * schema.defaultSize());
      }

      @Override
      public OptionalLong numRows() {
        return OptionalLong.of(found);
      }
    };
  }

  @Override
  public InputPartition[] planInputPartitions() {
    List<Range> wanted = ranges();
    if (limit >= 0) { // a few are enough
      List<Range> some = new ArrayList<>();
      long more = limit;
      for (Range one : wanted) {
        if (more <= 0) break;
        Range first = one.within(one.start, one.start + Math.min(more, one.end - one.start));
        more -= first.end - first.start;
        some.add(first);
      }
      wanted = some;
    }
    if (options.source.brokers != null) return SparkKafka.tasks(options, wanted, UUID.randomUUID().toString());
    List<InputPartition> tasks = new ArrayList<>(files);
    tasks.addAll(Range.cut(wanted, options.perPartition, options.leastPartitions));
    return tasks.toArray(new InputPartition[0]);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new RangeReader.Factory(options, schema);
  }

  /** What the log knows of itself, without reading. */
  private record Told(StructType readSchema, InternalRow[] rows, String description) implements LocalScan {}

  /** Takes in what of a query can be answered by looking only where it leads, or without looking. */
  static final class Builder
      implements ScanBuilder, SupportsPushDownFilters, SupportsPushDownRequiredColumns, SupportsPushDownAggregates,
          SupportsPushDownLimit {
    private final Options options;
    private final Narrowing narrowing;
    private StructType schema;
    private Filter[] pushed = {};
    private Told told;
    private long limit = -1;

    Builder(Options options, StructType schema) {
      this.options = options;
      narrowing = new Narrowing(options.source.brokers == null);
      this.schema = schema;
    }

    @Override
    public Filter[] pushFilters(Filter[] filters) {
      List<Filter> taken = new ArrayList<>(), rest = new ArrayList<>();
      // of a file of the archive all records are read, so Spark has to look again
      for (Filter one : filters) (narrowing.add(one) && options.history.isEmpty() ? taken : rest).add(one);
      pushed = taken.toArray(new Filter[0]);
      return rest.toArray(new Filter[0]);
    }

    @Override
    public Filter[] pushedFilters() {
      return pushed;
    }

    @Override
    public void pruneColumns(StructType required) {
      schema = required;
      if (options.history.isEmpty()) return;
      StructType whole = new StructType();
      for (String name : required.fieldNames()) whole = whole.add(Columns.WITH_EPOCH.apply(name));
      schema = whole; // a file gives a header whole
    }

    @Override
    public boolean pushLimit(int count) {
      if (!options.failOnDataLoss || !options.history.isEmpty() || !dense()) return false; // a range may turn out to have fewer
      limit = count;
      return true;
    }

    @Override
    public boolean isPartiallyPushed() {
      return true;
    }

    private boolean dense() {
      if (options.source.brokers != null) return false;
      try (Log log = Log.open(options.source)) {
        return log.dense();
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    @Override
    public boolean supportCompletePushDown(Aggregation aggregation) {
      return can(aggregation) && options.history.isEmpty();
    }

    private static boolean can(Aggregation aggregation) {
      for (Expression one : aggregation.groupByExpressions())
        if (!List.of("topic", "partition").contains(column(one))) return false;
      for (AggregateFunc one : aggregation.aggregateExpressions()) {
        boolean counted = one instanceof CountStar
            || one instanceof Count count && !count.isDistinct() && List.of("topic", "partition", "offset", "timestamp", "value")
                .contains(column(count.column()));
        if (!counted && !edge(one)) return false;
      }
      return true;
    }

    private static boolean edge(AggregateFunc one) {
      String of = one instanceof Min min ? column(min.column()) : one instanceof Max max ? column(max.column()) : "";
      return of.equals("offset") || of.equals("timestamp");
    }

    private static String column(Expression one) {
      return one instanceof NamedReference name && name.fieldNames().length == 1 ? name.fieldNames()[0] : "";
    }

    @Override
    public boolean pushAggregation(Aggregation aggregation) {
      if (!can(aggregation) || !options.history.isEmpty() || !dense()) return false; // only where offsets can be subtracted
      try (Log log = Log.open(options.source)) {
        told = told(log, aggregation);
        return true;
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    private Told told(Log log, Aggregation aggregation) throws IOException {
      Expression[] keys = aggregation.groupByExpressions();
      AggregateFunc[] wanted = aggregation.aggregateExpressions();
      Map<List<Object>, Object[]> groups = new LinkedHashMap<>();
      if (keys.length == 0) groups.put(List.of(), empty(wanted));
      for (Range range : left(log, options, narrowing)) {
        List<Object> key = new ArrayList<>();
        for (Expression one : keys) key.add(column(one).equals("topic") ? UTF8String.fromString(range.topic) : range.partition);
        Object[] so = groups.computeIfAbsent(key, none -> empty(wanted));
        for (int i = 0; i < wanted.length; i++) so[i] = and(log, wanted[i], range, (Long) so[i]);
      }
      StructType made = new StructType();
      for (Expression one : keys) made = made.add(column(one), Columns.ALL.apply(column(one)).dataType());
      for (int i = 0; i < wanted.length; i++)
        made = made.add("agg" + i, ofTimes(wanted[i]) ? DataTypes.TimestampType : DataTypes.LongType);
      List<InternalRow> rows = new ArrayList<>();
      groups.forEach((key, figures) -> {
        Object[] cells = Arrays.copyOf(key.toArray(), key.size() + figures.length);
        System.arraycopy(figures, 0, cells, key.size(), figures.length);
        rows.add(new GenericInternalRow(cells));
      });
      String description = "gateway " + options.source + ", from the log's bounds, pushed: " + Arrays.toString(pushed);
      return new Told(made, rows.toArray(new InternalRow[0]), description);
    }

    private static boolean ofTimes(AggregateFunc one) {
      return one instanceof Min min && column(min.column()).equals("timestamp")
          || one instanceof Max max && column(max.column()).equals("timestamp");
    }

    private static Object[] empty(AggregateFunc[] wanted) {
      return Arrays.stream(wanted).map(one -> edge(one) ? null : (Object) 0L).toArray();
    }

    private static Long and(Log log, AggregateFunc one, Range range, Long so) throws IOException {
      if (!edge(one)) return so + range.end - range.start;
      long at = one instanceof Min ? range.start : range.end - 1;
      long found = ofTimes(one) ? Planning.timeAt(log, range, at) * 1000 : at;
      return so == null ? found : one instanceof Min ? Math.min(so, found) : Math.max(so, found);
    }

    @Override
    public Scan build() {
      return told != null ? told : new LogScan(options, schema, narrowing, pushed, limit);
    }
  }
}
