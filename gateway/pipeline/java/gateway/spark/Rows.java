package gateway.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** A cursor over one table of a snapshot, whose rows are found by an integer. */
final class Rows {
  private static final int INTERIOR = 5, LEAF = 13, DEEPEST = 20;

  private final Snapshot pages;
  private final long root;
  /** The path to where the cursor is: a copy of each page, and which of its cells. */
  private final byte[][] path = new byte[DEEPEST][];
  private final ByteBuffer[] views = new ByteBuffer[DEEPEST];
  private final int[] cell = new int[DEEPEST];
  private int depth = -1;

  long key;
  /** Of the row that the cursor is on: its length, where it begins in its page, how much of it is there. */
  private long length;
  private int at, here;
  private final long[] kinds = new long[32];
  private final int[] places = new int[32];
  private int columns;

  Rows(Snapshot pages, long root) {
    this.pages = pages;
    this.root = root;
  }

  /** To the first row whose key is not below; false: there is none. */
  boolean ceiling(long wanted) throws IOException {
    descend(wanted);
    return settle();
  }

  /** To the last row whose key is not above; false: there is none. */
  boolean floor(long wanted) throws IOException {
    descend(wanted);
    if (cell[depth] < cells(depth) && keyAt(depth, cell[depth]) == wanted) return settle();
    while (cell[depth] == 0) if (--depth < 0) return false;
    cell[depth]--;
    while (kind(depth) == INTERIOR) { // down the last child of what lies before
      load(child(depth, cell[depth]));
      cell[depth] = kind(depth) == INTERIOR ? cells(depth) : cells(depth) - 1;
      if (cell[depth] < 0) throw new MalformedPage(root);
    }
    return settle();
  }

  boolean next() throws IOException {
    cell[depth]++;
    return settle();
  }

  private void descend(long wanted) throws IOException {
    depth = -1;
    load(root);
    while (true) {
      int low = 0, high = cells(depth);
      while (low < high) {
        int middle = (low + high) >>> 1;
        if (keyAt(depth, middle) < wanted) low = middle + 1;
        else high = middle;
      }
      cell[depth] = low;
      if (kind(depth) == LEAF) return;
      load(child(depth, low));
    }
  }

  /** On to a row, from where the cursor may be behind the last one of a page. */
  private boolean settle() throws IOException {
    while (kind(depth) == INTERIOR || cell[depth] >= cells(depth)) {
      if (kind(depth) == INTERIOR && cell[depth] <= cells(depth)) {
        load(child(depth, cell[depth]));
        continue;
      }
      if (--depth < 0) return false;
      cell[depth]++;
    }
    look();
    return true;
  }

  private void load(long number) throws IOException {
    if (++depth >= DEEPEST) throw new MalformedPage(number);
    if (path[depth] == null) {
      path[depth] = new byte[Snapshot.PAGE];
      views[depth] = ByteBuffer.wrap(path[depth]);
    }
    pages.page(number).get(0, path[depth]);
    cell[depth] = 0;
    int kind = kind(depth);
    if (kind != INTERIOR && kind != LEAF || start() + (kind == LEAF ? 8 : 12) + 2 * cells(depth) > pages.usable)
      throw new MalformedPage(number);
  }

  private int start() {
    return depth == 0 && root == 1 ? 100 : 0;
  }

  private int kind(int level) {
    return path[level][level == 0 && root == 1 ? 100 : 0];
  }

  private int cells(int level) {
    return views[level].getShort((level == 0 && root == 1 ? 100 : 0) + 3) & 0xffff;
  }

  private int pointer(int level, int index) throws IOException {
    int base = (level == 0 && root == 1 ? 100 : 0) + (kind(level) == LEAF ? 8 : 12);
    int found = views[level].getShort(base + 2 * index) & 0xffff;
    if (found < base || found > pages.usable - 4) throw new MalformedPage(root);
    return found;
  }

  private long child(int level, int index) throws IOException {
    int base = level == 0 && root == 1 ? 100 : 0;
    int place = index < cells(level) ? pointer(level, index) : base + 8;
    return views[level].getInt(place) & 0xffffffffL;
  }

  private int read; // where the varint that was read last ended

  private long varint(byte[] data, int from) throws IOException {
    long value = 0;
    for (int i = 0; i < 9; i++) {
      if (from + i >= data.length) throw new MalformedPage(root);
      byte one = data[from + i];
      if (i == 8) value = value << 8 | one & 0xff;
      else value = value << 7 | one & 0x7f;
      if (i == 8 || one >= 0) {
        read = from + i + 1;
        break;
      }
    }
    return value;
  }

  private long keyAt(int level, int index) throws IOException {
    int place = pointer(level, index);
    if (kind(level) == INTERIOR) return varint(path[level], place + 4);
    varint(path[level], place);
    return varint(path[level], read);
  }

  /** What the row under the cursor is, as far as it can be told without its overflow pages. */
  private void look() throws IOException {
    byte[] page = path[depth];
    length = varint(page, pointer(depth, cell[depth]));
    key = varint(page, read);
    at = read;
    long most = pages.usable - 35, least = (pages.usable - 12) * 32L / 255 - 23;
    long kept = length;
    if (length > most) {
      kept = least + (length - least) % (pages.usable - 4);
      if (kept > most) kept = least;
    }
    if (length < 1 || length > 1L << 31 || at + kept + (kept < length ? 4 : 0) > pages.usable) throw new MalformedPage(root);
    here = (int) kept;
    long head = varint(page, at);
    int from = read;
    if (head > here) throw new MalformedPage(root);
    long place = head;
    for (columns = 0; from < at + head; columns++) {
      if (columns == kinds.length || place > Integer.MAX_VALUE) throw new MalformedPage(root);
      kinds[columns] = varint(page, from);
      from = read;
      places[columns] = (int) place;
      place += size(kinds[columns]);
    }
    if (place != length) throw new MalformedPage(root);
  }

  private static final int[] SIZES = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};

  private static long size(long kind) {
    return kind < 12 ? SIZES[(int) Math.max(kind, 0)] : (kind - 12) / 2;
  }

  boolean isNull(int column) {
    return column >= columns || kinds[column] == 0;
  }

  /** A column that is an integer. */
  long integer(int column) throws IOException {
    long kind = column < columns ? kinds[column] : -1;
    if (kind == 8 || kind == 9) return kind - 8;
    int from = at + (column < columns ? places[column] : 0), count = kind < 1 || kind > 6 ? 0 : SIZES[(int) kind];
    if (count == 0 || from + count > at + here) throw new MalformedPage(root);
    long value = path[depth][from];
    for (int i = 1; i < count; i++) value = value << 8 | path[depth][from + i] & 0xff;
    return value;
  }

  String text(int column) throws IOException {
    if (column >= columns || kinds[column] < 13 || kinds[column] % 2 == 0) throw new MalformedPage(root);
    return new String(bytes(column), StandardCharsets.UTF_8);
  }

  byte[] blob(int column) throws IOException {
    if (column >= columns || kinds[column] < 12 || kinds[column] % 2 == 1) throw new MalformedPage(root);
    return bytes(column);
  }

  private byte[] bytes(int column) throws IOException {
    int from = places[column], count = (int) size(kinds[column]);
    byte[] found = new byte[count];
    int local = Math.max(0, Math.min(here - from, count));
    System.arraycopy(path[depth], at + from, found, 0, local);
    if (local == count) return found;
    int skip = Math.max(0, from - here); // of the bytes behind the page
    int done = local;
    long following = views[depth].getInt(at + here) & 0xffffffffL;
    while (done < count) {
      ByteBuffer data = pages.pageOf(following, (long) count - done + skip);
      int room = pages.usable - 4, passed = Math.min(skip, room);
      skip -= passed;
      int taken = Math.min(room - passed, count - done);
      data.get(4 + passed, found, done, taken);
      done += taken;
      following = data.getInt(0) & 0xffffffffL;
    }
    return found;
  }

  /** The text of the first column of a table without a number, whose rows lie in the leaf of an index: the value beside it. */
  static Long named(Snapshot pages, long root, String name) throws IOException {
    byte[] page = new byte[Snapshot.PAGE];
    pages.page(root).get(0, page);
    ByteBuffer view = ByteBuffer.wrap(page);
    if (page[0] != 10) throw new MalformedPage(root);
    byte[] wanted = name.getBytes(StandardCharsets.UTF_8);
    Rows row = new Rows(pages, root);
    for (int index = 0; index < (view.getShort(3) & 0xffff); index++) {
      row.varint(page, view.getShort(8 + 2 * index) & 0xffff);
      int at = row.read;
      int head = (int) row.varint(page, at);
      long one = row.varint(page, row.read), two = row.varint(page, row.read);
      int from = at + head, size = (int) size(one);
      if (size != wanted.length || !Arrays.equals(page, from, from + size, wanted, 0, size)) continue;
      if (two == 8 || two == 9) return two - 8;
      long value = page[from + size];
      for (int i = 1; i < SIZES[(int) two]; i++) value = value << 8 | page[from + size + i] & 0xff;
      return value;
    }
    return null;
  }
}
