package gateway.spark;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.zip.CRC32C;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The records of one partition in one commit, as the bytes that the store keeps (layout version 1, described in
 * gateway/store/chunk.py). Nothing is decoded that nobody asks for; but that the bytes are those that were written is always checked.
 */
final class Chunk {
  private static final VarHandle I = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
  private static final VarHandle L = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

  static final int KEYS = 1, HEADERS = 2, EXPIRES = 4, TIMES = 8, KNOWN = 15;
  private static final int HEAD = 64, VERSION = 1;

  final byte[] data;
  final long base, firstMs;
  final int count, present;
  final int endsAt, valuesAt, keysAt, headersAt, expiriesAt, timesAt;

  private Chunk(byte[] data) {
    this.data = data;
    present = data[3];
    base = i64(8);
    firstMs = i64(16);
    count = i32(40);
    endsAt = HEAD + i32(44);
    valuesAt = endsAt + 4 * count;
    keysAt = valuesAt + i32(48);
    headersAt = keysAt + i32(52);
    expiriesAt = headersAt + i32(56);
    timesAt = expiriesAt + ((present & EXPIRES) != 0 ? 8 * count : 0);
  }

  /** Raises CorruptChunk unless it is what was written, for these records. */
  static Chunk checked(Log.Stored stored, String topic, int partition) {
    if (!good(stored)) throw new CorruptChunk(topic, partition, stored.base, stored.base + stored.count);
    return new Chunk(stored.data);
  }

  private static boolean good(Log.Stored stored) {
    byte[] data = stored.data;
    if (data.length < HEAD || data[0] != 'G' || data[1] != 'C' || data[2] != VERSION || (data[3] & ~KNOWN) != 0) return false;
    long count = (int) I.get(data, 40), size = HEAD;
    for (int at = 44; at < 60; at += 4) size += (int) I.get(data, at) & 0xffffffffL;
    size += count * (4 + ((data[3] & EXPIRES) != 0 ? 8 : 0) + ((data[3] & TIMES) != 0 ? 8 : 0));
    if (count < 1 || count != stored.count || (long) L.get(data, 8) != stored.base || (int) I.get(data, 60) != 0) return false;
    if ((long) L.get(data, 24) < (long) L.get(data, 16) || size != data.length) return false;
    CRC32C sum = new CRC32C();
    sum.update(data, 0, 4);
    sum.update(data, 8, data.length - 8);
    return (int) sum.getValue() == (int) I.get(data, 4);
  }

  int i32(int at) {
    return (int) I.get(data, at);
  }

  long i64(int at) {
    return (long) L.get(data, at);
  }

  long time(int record) {
    return (present & TIMES) == 0 ? firstMs : i64(timesAt + 8 * record);
  }

  /** 0: never. */
  long expiry(int record) {
    return (present & EXPIRES) == 0 ? 0 : i64(expiriesAt + 8 * record);
  }

  byte[] value(int record) {
    int from = record == 0 ? 0 : i32(endsAt + 4 * (record - 1));
    return Arrays.copyOfRange(data, valuesAt + from + 4, valuesAt + i32(endsAt + 4 * record));
  }

  boolean hasKey(int record) {
    return (present & KEYS) != 0 && data[keysAt + 4 * count + record] != 0;
  }

  byte[] key(int record) {
    int cells = keysAt + 5 * count, from = record == 0 ? 0 : i32(keysAt + 4 * (record - 1));
    return Arrays.copyOfRange(data, cells + from, cells + i32(keysAt + 4 * record));
  }

  // --- who sent it: said once for many records ---

  static final int PROTOCOL = 0, LISTENER = 1, PRINCIPAL = 2, ROUTE = 4;

  private UTF8String[][] sources;
  private int[] batchSource, batchIdAt, batchIdSize;
  private byte[] batchDelivery;
  private int[] firsts, inners, batches;
  private int near;

  private void load() {
    if (sources != null) return;
    int at = HEAD, known = i32(at), many = i32(at + 4), stretches = i32(at + 8);
    at += 12;
    var found = new UTF8String[known][5];
    for (int i = 0; i < known; i++)
      for (int part = 0; part < 5; part++) {
        int size = i32(at);
        found[i][part] = UTF8String.fromBytes(data, at + 4, size);
        at += 4 + size;
      }
    batchSource = new int[many];
    batchIdAt = new int[many];
    batchIdSize = new int[many];
    batchDelivery = new byte[many];
    for (int i = 0; i < many; i++) {
      batchSource[i] = i32(at);
      batchDelivery[i] = data[at + 4];
      batchIdSize[i] = data[at + 5] & 255;
      batchIdAt[i] = at + 6;
      at += 6 + batchIdSize[i];
    }
    firsts = new int[stretches];
    inners = new int[stretches];
    batches = new int[stretches];
    for (int i = 0; i < stretches; i++, at += 12) {
      firsts[i] = i32(at);
      inners[i] = i32(at + 4);
      batches[i] = i32(at + 8);
    }
    sources = found;
  }

  /** Which stretch of one batch a record is in; mostly that of the record before. */
  private int stretch(int record) {
    load();
    int at = near;
    while (at > 0 && firsts[at] > record) at--;
    while (at + 1 < firsts.length && firsts[at + 1] <= record) at++;
    return near = at;
  }

  UTF8String said(int record, int what) {
    return sources()[batchSource[batches[stretch(record)]]][what];
  }

  private UTF8String[][] sources() {
    load();
    return sources;
  }

  boolean atLeastOnce(int record) {
    int stretch = stretch(record);
    return batchDelivery[batches[stretch]] != 0;
  }

  /** The id of the batch, and the index in it. */
  byte[] id(int record) {
    int stretch = stretch(record), batch = batches[stretch], size = batchIdSize[batch];
    int index = inners[stretch] + record - firsts[stretch];
    byte[] id = Arrays.copyOfRange(data, batchIdAt[batch], batchIdAt[batch] + size + 4);
    id[size] = (byte) (index >>> 24);
    id[size + 1] = (byte) (index >>> 16);
    id[size + 2] = (byte) (index >>> 8);
    id[size + 3] = (byte) index;
    return id;
  }
}
