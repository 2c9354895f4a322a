package gateway.spark;

import java.util.Arrays;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of a row, and how they point into a chunk. */
final class Columns {
  static final StructType ALL = StructType.fromDDL(
      "topic string, partition int, offset bigint, timestamp timestamp, expires timestamp, key binary, value binary, "
          + "headers array<struct<name: string, value: binary>>, id binary, protocol string, listener string, "
          + "principal string, route string, delivery string");

  /** Which life of its topic a message is from: beside the others where there may be several. */
  static final String EPOCH = "epoch";

  static final StructType WITH_EPOCH = ALL.add(EPOCH, DataTypes.LongType);

  private static final UTF8String AT_MOST_ONCE = UTF8String.fromString("at_most_once");
  private static final UTF8String AT_LEAST_ONCE = UTF8String.fromString("at_least_once");

  private Columns() {}

  /** Raises InvalidRequest for columns that there are not, or not of this type. */
  static void check(StructType schema, StructType all) {
    var missing = new java.util.ArrayList<String>();
    for (StructField field : schema.fields()) {
      if (!Arrays.asList(all.fieldNames()).contains(field.name())) {
        missing.add(field.name());
        continue;
      }
      DataType whole = all.apply(field.name()).dataType();
      if (!field.dataType().asNullable().equals(whole.asNullable()))
        throw new InvalidRequest("the column " + field.name() + " is " + whole.simpleString());
    }
    if (!missing.isEmpty())
      throw new InvalidRequest(
          "a message has no column " + String.join(", ", missing) + "; there are " + String.join(", ", all.fieldNames()));
  }

  /** Some records of a chunk. */
  static ColumnarBatch batch(Chunk chunk, UTF8String topic, Range range, StructType schema, int skip, int rows) {
    ColumnVector[] vectors = new ColumnVector[schema.length()];
    for (int i = 0; i < vectors.length; i++) vectors[i] = column(chunk, topic, range, schema.fields()[i], skip, rows);
    return new ColumnarBatch(vectors, rows);
  }

  private static ColumnVector column(Chunk chunk, UTF8String topic, Range range, StructField field, int skip, int rows) {
    DataType type = field.dataType();
    switch (field.name()) {
      case "topic":
        return new Text() {
          @Override
          public UTF8String getUTF8String(int row) {
            return topic;
          }
        };
      case "partition":
        return new Vector(type) {
          @Override
          public int getInt(int row) {
            return range.partition;
          }
        };
      case EPOCH:
        return new Vector(type) {
          @Override
          public long getLong(int row) {
            return range.epoch;
          }
        };
      case "offset":
        return new Vector(type) {
          private final long first = chunk.base + skip;

          @Override
          public long getLong(int row) {
            return first + row;
          }
        };
      case "timestamp":
        return new Vector(type) {
          @Override
          public long getLong(int row) {
            return chunk.time(skip + row) * 1000;
          }
        };
      case "expires":
        return new Sparse(type, rows) {
          @Override
          public boolean isNullAt(int row) {
            return chunk.expiry(skip + row) == 0;
          }

          @Override
          public long getLong(int row) {
            return chunk.expiry(skip + row) * 1000;
          }
        };
      case "key":
        return new Sparse(type, rows) {
          @Override
          public boolean isNullAt(int row) {
            return !chunk.hasKey(skip + row);
          }

          @Override
          public byte[] getBinary(int row) {
            return chunk.hasKey(skip + row) ? chunk.key(skip + row) : null;
          }
        };
      case "value":
        return new Vector(type) {
          @Override
          public byte[] getBinary(int row) {
            return chunk.value(skip + row);
          }
        };
      case "headers":
        return new Headers(chunk, (ArrayType) type, skip);
      case "id":
        return new Vector(type) {
          @Override
          public byte[] getBinary(int row) {
            return chunk.id(skip + row);
          }
        };
      case "delivery":
        return new Text() {
          @Override
          public UTF8String getUTF8String(int row) {
            return chunk.atLeastOnce(skip + row) ? AT_LEAST_ONCE : AT_MOST_ONCE;
          }
        };
      default:
        int what = switch (field.name()) {
          case "protocol" -> Chunk.PROTOCOL;
          case "listener" -> Chunk.LISTENER;
          case "principal" -> Chunk.PRINCIPAL;
          case "route" -> Chunk.ROUTE;
          default -> throw new InvalidRequest("a message has no column " + field.name());
        };
        return new Text() {
          @Override
          public UTF8String getUTF8String(int row) {
            return chunk.said(skip + row, what);
          }
        };
    }
  }

  /** A list of (name, value) for each record; only the fields of a pair that are asked for. */
  private static final class Headers extends Vector {
    private final Chunk chunk;
    private final int skip;
    private final StructType pair;
    private final ColumnVector pairs;
    /** The first pair of each record; where names and values lie. Found when the first record is looked at. */
    private int[] firsts, names, nameSizes, valueSizes;

    Headers(Chunk chunk, ArrayType type, int skip) {
      super(type);
      this.chunk = chunk;
      this.skip = skip;
      pair = (StructType) type.elementType();
      ColumnVector[] children = new ColumnVector[pair.length()];
      for (int i = 0; i < children.length; i++)
        children[i] = pair.fields()[i].name().equals("name")
            ? new Text() {
              @Override
              public UTF8String getUTF8String(int row) {
                return UTF8String.fromBytes(chunk.data, names[row], nameSizes[row]);
              }
            }
            : new Vector(DataTypes.BinaryType) {
              @Override
              public byte[] getBinary(int row) {
                int at = names[row] + nameSizes[row];
                return Arrays.copyOfRange(chunk.data, at, at + valueSizes[row]);
              }
            };
      pairs = new Vector(pair) {
        @Override
        public ColumnVector getChild(int ordinal) {
          return children[ordinal];
        }
      };
    }

    private void find() {
      int count = chunk.count, cells = chunk.headersAt + 4 * count, total = 0;
      firsts = new int[count + 1];
      for (int record = 0; record < count; record++) {
        firsts[record] = total;
        total += chunk.i32(cells + begin(record));
      }
      firsts[count] = total;
      names = new int[total];
      nameSizes = new int[total];
      valueSizes = new int[total];
      for (int record = 0, i = 0; record < count; record++)
        for (int at = cells + begin(record) + 4; i < firsts[record + 1]; i++) {
          nameSizes[i] = chunk.i32(at);
          valueSizes[i] = chunk.i32(at + 4);
          names[i] = at + 8;
          at = names[i] + nameSizes[i] + valueSizes[i];
        }
    }

    private int begin(int record) {
      return record == 0 ? 0 : chunk.i32(chunk.headersAt + 4 * (record - 1));
    }

    @Override
    public ColumnarArray getArray(int row) {
      if ((chunk.present & Chunk.HEADERS) == 0) return new ColumnarArray(pairs, 0, 0);
      if (firsts == null) find();
      int from = firsts[skip + row];
      return new ColumnarArray(pairs, from, firsts[skip + row + 1] - from);
    }
  }

  private abstract static class Text extends Vector {
    Text() {
      super(DataTypes.StringType);
    }
  }

  /** One of which some may be null. */
  private abstract static class Sparse extends Vector {
    private final int rows;

    Sparse(DataType type, int rows) {
      super(type);
      this.rows = rows;
    }

    @Override
    public boolean hasNull() {
      return true;
    }

    @Override
    public int numNulls() {
      int found = 0;
      for (int row = 0; row < rows; row++) if (isNullAt(row)) found++;
      return found;
    }
  }

  private abstract static class Vector extends ColumnVector {
    Vector(DataType type) {
      super(type);
    }

    @Override
    public void close() {}

    @Override
    public boolean hasNull() {
      return false;
    }

    @Override
    public int numNulls() {
      return 0;
    }

    @Override
    public boolean isNullAt(int row) {
      return false;
    }

    private UnsupportedOperationException other() {
      return new UnsupportedOperationException("a column of type " + type.simpleString());
    }

    @Override
    public boolean getBoolean(int row) {
      throw other();
    }

    @Override
    public byte getByte(int row) {
      throw other();
    }

    @Override
    public short getShort(int row) {
      throw other();
    }

    @Override
    public int getInt(int row) {
      throw other();
    }

    @Override
    public long getLong(int row) {
      throw other();
    }

    @Override
    public float getFloat(int row) {
      throw other();
    }

    @Override
    public double getDouble(int row) {
      throw other();
    }

    @Override
    public ColumnarArray getArray(int row) {
      throw other();
    }

    @Override
    public ColumnarMap getMap(int row) {
      throw other();
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
      throw other();
    }

    @Override
    public UTF8String getUTF8String(int row) {
      throw other();
    }

    @Override
    public byte[] getBinary(int row) {
      throw other();
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      throw other();
    }
  }
}
