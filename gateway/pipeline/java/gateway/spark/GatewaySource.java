package gateway.spark;

import java.util.Arrays;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** `format("gateway")`: reads in columns, in this process; what is written goes by the sink in Python. */
public final class GatewaySource implements TableProvider, DataSourceRegister {
  /** What the data source in Python is called, which reads the same, a log on Kafka too, and writes. */
  private static final String PYTHON = "gateway-python";
  private static final String KAFKA = "kafka";

  @Override
  public String shortName() {
    return "gateway";
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    if (pythonReads(options)) return python().inferSchema(options);
    Options given = new Options(options.asCaseSensitiveMap()); // what is wrong with them is said by load()
    StructType all = given.columns();
    if (given.headers) return all;
    StructField[] fields =
        Arrays.stream(all.fields()).filter(one -> !one.name().equals("headers")).toArray(StructField[]::new);
    return new StructType(fields);
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    if (pythonReads(new CaseInsensitiveStringMap(properties))) return python().getTable(schema, partitioning, properties);
    return new LogTable(schema, partitioning, properties);
  }

  private static boolean pythonReads(CaseInsensitiveStringMap options) {
    return options.containsKey(KAFKA) && !SparkKafka.reads(options);
  }

  private static PythonDataSourceV2 python() {
    PythonDataSourceV2 python = new PythonDataSourceV2();
    python.setShortName(PYTHON);
    return python;
  }

  private record LogTable(StructType fields, Transform[] partitioning, Map<String, String> properties)
      implements Table, SupportsRead, SupportsWrite {
    @Override
    public String name() {
      return "gateway";
    }

    @Override
    public Column[] columns() {
      return Arrays.stream(fields.fields())
          .map(one -> Column.create(one.name(), one.dataType(), one.nullable()))
          .toArray(Column[]::new);
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(
          TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.STREAMING_WRITE,
          TableCapability.TRUNCATE);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      Options given = new Options(options.asCaseSensitiveMap());
      Columns.check(fields, given.columns());
      return new LogScan.Builder(given, fields);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return ((SupportsWrite) python().getTable(fields, partitioning, properties)).newWriteBuilder(info);
    }
  }
}
