package gateway.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.datasources.parquet.VectorizedParquetRecordReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/** The records of a file of an archive, by Spark's own reader of Parquet. */
final class ArchiveReader implements PartitionReader<ColumnarBatch> {
  /** What the file does not say itself. */
  private static final List<String> SAID = List.of("topic", Columns.EPOCH);
  private static final int ROWS = 4096;

  private final VectorizedParquetRecordReader reader = new VectorizedParquetRecordReader(false, ROWS);
  private final int[] places;

  ArchiveReader(Archive.File file, StructType schema, Configuration hadoop) throws IOException {
    // the reader asks for the file's system with settings of its own, and gets the one that was made with the session's
    new Path(file.path).getFileSystem(hadoop);
    List<String> columns = new ArrayList<>(Arrays.asList(schema.fieldNames()));
    columns.removeAll(SAID);
    try {
      reader.initialize(file.path, columns);
    } catch (FileNotFoundException gone) {
      throw new HistoryGone(file.path + " is not there: the archive was merged meanwhile, or has lost it");
    }
    StructType said = new StructType();
    for (String name : SAID) said = said.add(name, Columns.WITH_EPOCH.apply(name).dataType());
    reader.initBatch(said, new GenericInternalRow(new Object[] {UTF8String.fromString(file.topic), file.epoch}));
    reader.enableReturningBatches();
    places = Arrays.stream(schema.fieldNames())
        .mapToInt(name -> SAID.contains(name) ? columns.size() + SAID.indexOf(name) : columns.indexOf(name))
        .toArray();
  }

  @Override
  public boolean next() throws IOException {
    return reader.nextBatch();
  }

  @Override
  public ColumnarBatch get() {
    ColumnarBatch found = reader.resultBatch();
    ColumnVector[] ordered = new ColumnVector[places.length];
    for (int i = 0; i < places.length; i++) ordered[i] = found.column(places[i]);
    return new ColumnarBatch(ordered, found.numRows());
  }

  @Override
  public void close() throws IOException {
    reader.close();
  }
}
