package gateway.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;

/**
 * The pages of a SQLite database in write-ahead mode, as of one commit, while another process goes on writing: without any lock, so
 * that nobody who serves the store ever waits for a reader, and without SQLite.
 *
 * <p>{@link #begin} notes which commit is the last one, by the index that SQLite keeps of its log in shared memory; the pages that the
 * log has up to there are read from it, the others from the database. {@link #unmoved} says afterwards whether what was read is of
 * that commit: no page of a later one was carried over into the database meanwhile (SQLite announces how far it will go before it
 * begins), the log did not begin anew, and both files are still the ones that were opened. Where it says no, what was read is thrown
 * away and read again. The layouts are those of sqlite.org/fileformat2.html and sqlite.org/walformat.html.
 */
final class Snapshot implements Closeable {
  static final int PAGE = 16384;
  /** Pages that are read at a time where a long row lies in one piece. */
  private static final int AHEAD = 16;

  private static final int FRAME = 24 + PAGE, LOG_HEADER = 32;
  private static final int INDEX_VERSION = 3007000;
  /** Of the shared memory: what it says of itself, and where it lists which page each frame of the log holds. */
  private static final int HEADER = 136, BLOCK = 32768, FIRST_FRAMES = 4062, FRAMES = 4096;
  /** How often its two copies may be found to differ before it counts as abandoned in the midst of a change. */
  private static final int LOOKS = 1000;

  private final Path database, log, shared;
  private final FileChannel file;
  private FileChannel logFile, sharedFile;
  private Object logKey, sharedKey;
  /** What begin() found. */
  private long salt, last, stamp, size;
  private boolean indexed;
  private Frames frames = new Frames();

  private final ByteBuffer window = ByteBuffer.allocateDirect(PAGE * AHEAD);
  private long windowAt = -1;
  private int windowPages;
  int usable = PAGE;

  Snapshot(Path directory) throws IOException {
    database = directory.resolve("log.sqlite");
    log = directory.resolve("log.sqlite-wal");
    shared = directory.resolve("log.sqlite-shm");
    file = FileChannel.open(database);
  }

  @Override
  public void close() throws IOException {
    try (file) {
      forget();
    }
  }

  private void forget() throws IOException {
    FileChannel first = logFile, second = sharedFile;
    logFile = sharedFile = null;
    logKey = sharedKey = null;
    if (first != null) first.close();
    if (second != null) second.close();
  }

  /** The last commit that there is now. */
  void begin() throws IOException {
    windowAt = -1;
    Object logNow = keyOf(log), sharedNow = keyOf(shared);
    if (!same(logNow, logKey) || !same(sharedNow, sharedKey)) {
      forget();
      logFile = logNow == null ? null : opened(log);
      sharedFile = sharedNow == null ? null : opened(shared);
      logKey = logFile == null ? null : logNow;
      sharedKey = sharedFile == null ? null : sharedNow;
      frames = new Frames();
    }
    stamp = Files.getLastModifiedTime(database).toInstant().toEpochMilli();
    size = file.size();
    ByteBuffer head = sharedFile == null ? null : header();
    indexed = head != null && logFile != null;
    if (indexed) {
      last = head.getInt(16) & 0xffffffffL;
      if (head.getLong(32) != salt) frames = new Frames();
      salt = head.getLong(32);
      frames.extend(last);
    } else {
      last = 0;
      frames = new Frames();
      // nobody serves the store, and whoever did was stopped hard: what its log has is told by its checksums
      if (logFile != null) frames.recover();
    }
    ByteBuffer first = bytes(1, 0, 24);
    if (first.getShort(16) != PAGE) throw new MalformedPage(1);
    usable = PAGE - (first.get(20) & 255);
  }

  /** Whether all that was read since begin() is of that commit. */
  boolean unmoved() throws IOException {
    if (!same(keyOf(log), logKey) || !same(keyOf(shared), sharedKey)) return false;
    if (!indexed) {
      boolean still = sharedFile == null || header() == null;
      return still && file.size() == size && Files.getLastModifiedTime(database).toInstant().toEpochMilli() == stamp;
    }
    ByteBuffer head = header();
    if (head == null || head.getLong(32) != salt) return false;
    long attempted = head.getInt(128) & 0xffffffffL, done = head.getInt(96) & 0xffffffffL;
    return Math.max(attempted, done) <= last;
  }

  /** A page, from its beginning. What is returned is of use until the next page is read. */
  ByteBuffer page(long number) throws IOException {
    return bytes(number, 0, PAGE);
  }

  /** As page(); it begins a row's rest of so many bytes, whose pages mostly follow each other. */
  ByteBuffer pageOf(long number, long rest) throws IOException {
    long offset = frames.of(number);
    if (offset >= 0) return bytes(number, 0, PAGE);
    if (windowAt < 0 || number < windowAt || number >= windowAt + windowPages) {
      int wanted = (int) Math.min(AHEAD, 1 + (rest - 1) / (usable - 4));
      window.clear().limit(wanted * PAGE);
      int got = fill(file, window, (number - 1) * (long) PAGE);
      windowAt = number;
      windowPages = got / PAGE;
      if (windowPages == 0) {
        windowAt = -1;
        throw new MalformedPage(number);
      }
    }
    int at = (int) (number - windowAt) * PAGE;
    return window.slice(at, PAGE);
  }

  private ByteBuffer bytes(long number, int from, int count) throws IOException {
    if (number < 1) throw new MalformedPage(number);
    long offset = frames.of(number);
    windowAt = -1;
    window.clear().limit(count);
    int got = offset >= 0 ? fill(logFile, window, offset + from) : fill(file, window, (number - 1) * (long) PAGE + from);
    if (got < count) throw new MalformedPage(number);
    return window.slice(0, count);
  }

  private static int fill(FileChannel from, ByteBuffer to, long at) throws IOException {
    int begin = to.position();
    while (to.hasRemaining()) {
      int got = from.read(to, at + to.position() - begin);
      if (got <= 0) break;
    }
    return to.position() - begin;
  }

  /** The index's own account of itself, when both copies of it agree and are whole; else null. */
  private ByteBuffer header() throws IOException {
    ByteBuffer head = ByteBuffer.allocate(HEADER).order(ByteOrder.nativeOrder());
    for (int look = 0; look < LOOKS; look++) {
      head.clear();
      if (fill(sharedFile, head, 0) < HEADER) return null;
      boolean agree = head.getInt(0) == INDEX_VERSION && head.get(12) == 1;
      for (int at = 0; at < 48 && agree; at += 8) agree = head.getLong(at) == head.getLong(48 + at);
      if (agree) {
        int one = 0, two = 0;
        for (int at = 0; at < 40; at += 8) {
          one += head.getInt(at) + two;
          two += head.getInt(at + 4) + one;
        }
        if (one == head.getInt(40) && two == head.getInt(44)) return head;
      }
      Thread.onSpinWait();
    }
    return null;
  }

  private static FileChannel opened(Path path) throws IOException {
    try {
      return FileChannel.open(path);
    } catch (NoSuchFileException gone) {
      return null;
    }
  }

  /** Which file it is that has this name; null for none. */
  private static Object keyOf(Path path) throws IOException {
    try {
      return Files.readAttributes(path, BasicFileAttributes.class).fileKey();
    } catch (NoSuchFileException gone) {
      return null;
    }
  }

  private static boolean same(Object one, Object two) {
    return one == null ? two == null : one.equals(two);
  }

  /** Which frame of the log has the newest copy of a page. */
  private final class Frames {
    private final java.util.HashMap<Integer, Integer> newest = new java.util.HashMap<>();
    private long known;

    /** Where its page lies in the log; -1: it is in the database. */
    long of(long page) {
      Integer frame = newest.isEmpty() ? null : newest.get((int) page);
      return frame == null ? -1 : LOG_HEADER + (frame - 1L) * FRAME + 24;
    }

    /** Take in what the index lists up to a frame. */
    void extend(long last) throws IOException {
      while (known < last) {
        boolean first = known < FIRST_FRAMES;
        long block = first ? 0 : 1 + (known - FIRST_FRAMES) / FRAMES;
        long inBlock = first ? known : (known - FIRST_FRAMES) % FRAMES;
        int count = (int) Math.min(last - known, (first ? FIRST_FRAMES : FRAMES) - inBlock);
        ByteBuffer pages = ByteBuffer.allocate(4 * count).order(ByteOrder.nativeOrder());
        if (fill(sharedFile, pages, block * BLOCK + (first ? HEADER : 0) + 4 * inBlock) < 4 * count) throw new MalformedPage(0);
        for (int i = 0; i < count; i++) newest.put(pages.getInt(4 * i), (int) (known + i + 1));
        known += count;
      }
    }

    /** Take in the log itself, up to its last commit that is whole. */
    void recover() throws IOException {
      ByteBuffer head = ByteBuffer.allocate(LOG_HEADER);
      if (fill(logFile, head, 0) < LOG_HEADER || (head.getInt(0) & ~1) != 0x377F0682 || head.getInt(8) != PAGE) return;
      ByteOrder order = (head.getInt(0) & 1) == 1 ? ByteOrder.BIG_ENDIAN : ByteOrder.LITTLE_ENDIAN;
      int[] sum = summed(head.duplicate().order(order), 0, 24, new int[2]);
      if (sum[0] != head.getInt(24) || sum[1] != head.getInt(28)) return;
      var waiting = new java.util.HashMap<Integer, Integer>();
      ByteBuffer frame = ByteBuffer.allocate(FRAME);
      for (int number = 1; ; number++) {
        frame.clear();
        if (fill(logFile, frame, LOG_HEADER + (number - 1L) * FRAME) < FRAME) return;
        if (frame.getLong(8) != head.getLong(16) || frame.getInt(0) == 0) return;
        ByteBuffer ordered = frame.duplicate().order(order);
        sum = summed(ordered, 24, PAGE, summed(ordered, 0, 8, sum));
        if (sum[0] != frame.getInt(16) || sum[1] != frame.getInt(20)) return;
        waiting.put(frame.getInt(0), number);
        if (frame.getInt(4) != 0) {
          newest.putAll(waiting);
          waiting.clear();
        }
      }
    }

    private int[] summed(ByteBuffer data, int from, int count, int[] sum) {
      int one = sum[0], two = sum[1];
      for (int at = from; at < from + count; at += 8) {
        one += data.getInt(at) + two;
        two += data.getInt(at + 4) + one;
      }
      return new int[] {one, two};
    }
  }
}

/** A page is not what its place says. */
class MalformedPage extends IOException {
  MalformedPage(long number) {
    super("page " + number + " is damaged");
  }
}
