package gateway.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Predicate;

/** A store, from its directory: live or stopped. */
final class StoreLog implements Log {
  private static final int OFFSET_BITS = 43;
  private static final long MASK = (1L << OFFSET_BITS) - 1;
  /** 2: the same, with a journal beside it. */
  private static final long LAYOUT = 2;
  /** About how much is read of one commit before the next one is looked at. */
  private static final long READ_BYTES = 8 << 20;
  /** How long, in milliseconds, a gateway may take to bring its journal into the database, and when it is looked again. */
  private static final long PATIENCE = 5000, LOOK_AGAIN = 2;
  /** How often the writer may be faster than we are. */
  private static final int TRIES = 200;

  /** Columns of the table chunks. */
  private static final int COUNT = 1, FIRST_MS = 2, LAST_MS = 3, POSITION = 5, SIZE = 6, DATA = 8;

  private final String path;
  private final Snapshot pages;
  private final Journal journal;
  private Map<String, Long> roots;

  private interface Work<T> {
    T of() throws IOException;
  }

  StoreLog(String path) throws IOException {
    this.path = path;
    if (!Files.isRegularFile(Path.of(path, "log.sqlite"))) throw new NotAStore("there is no store at " + path);
    pages = new Snapshot(Path.of(path));
    journal = new Journal(Path.of(path));
    try {
      Long layout = within(() -> {
        Map<String, Long> found = new HashMap<>();
        Rows schema = new Rows(pages, 1);
        for (boolean there = schema.ceiling(Long.MIN_VALUE); there; there = schema.next())
          if (schema.text(0).equals("table")) found.put(schema.text(1), schema.integer(3));
        if (!found.keySet().containsAll(List.of("meta", "topics", "partitions", "chunks"))) throw new MalformedPage(1);
        roots = found;
        return Rows.named(pages, roots.get("meta"), "layout");
      });
      if (layout == null || layout < 1 || layout > LAYOUT)
        throw new NotAStore(path + " has layout " + layout + ", this program knows " + LAYOUT);
    } catch (StoreDamaged damaged) {
      pages.close();
      throw new NotAStore(path + " cannot be read as a store: " + damaged.getMessage());
    }
  }

  @Override
  public void close() throws IOException {
    pages.close();
  }

  @Override
  public boolean dense() {
    return true;
  }

  /** Do it on what one commit left, and again where the writer was there before it was done. */
  private <T> T within(Work<T> work) throws IOException {
    for (int tries = 0; ; tries++) {
      IOException failed = null;
      T found = null;
      pages.begin();
      try {
        found = work.of();
      } catch (MalformedPage | IndexOutOfBoundsException error) {
        failed = error instanceof IOException one ? one : new MalformedPage(0);
      }
      if (pages.unmoved()) {
        if (failed != null)
          throw new StoreDamaged(path + ": " + failed.getMessage() + ". `gateway store check` names all that is damaged");
        return found;
      }
      if (tries == TRIES) throw new IOException(path + ": it is written faster than it can be read here");
      Thread.yield();
    }
  }

  private Rows chunks() {
    return new Rows(pages, roots.get("chunks"));
  }

  /** Return when the database has all that was acknowledged before the call. */
  private void bringUpToDate() throws IOException {
    long wanted = journal.last(), until = System.nanoTime() + PATIENCE * 1_000_000;
    while (wanted > 0) {
      Long there = within(() -> Rows.named(pages, roots.get("meta"), "commit"));
      if (there == null || there >= wanted) return;
      if (System.nanoTime() > until)
        throw new StoreDamaged(path + " was not closed: what it acknowledged last is in its journal, up to commit " + wanted
            + ", and nobody brings it into the database. A start of its gateway does so, and `gateway audit --path`");
      try {
        Thread.sleep(LOOK_AGAIN);
      } catch (InterruptedException stopped) {
        throw new Stopped(stopped);
      }
    }
  }

  @Override
  public Map<String, Topic> topics(Predicate<String> meant) throws IOException {
    bringUpToDate();
    return inDatabase(meant);
  }

  private Map<String, Topic> inDatabase(Predicate<String> meant) throws IOException {
    return within(() -> {
      Map<String, Topic> found = new TreeMap<>();
      Map<Long, List<Partition>> partitions = new HashMap<>();
      Rows topic = new Rows(pages, roots.get("topics"));
      for (boolean there = topic.ceiling(Long.MIN_VALUE); there; there = topic.next()) {
        String name = topic.text(1);
        if (!meant.test(name)) continue;
        List<Partition> its = new ArrayList<>();
        partitions.put(topic.key, its);
        found.put(name, new Topic(name, topic.integer(2), its));
      }
      Rows row = new Rows(pages, roots.get("partitions"));
      Rows chunk = chunks();
      for (boolean there = row.ceiling(Long.MIN_VALUE); there; there = row.next()) {
        List<Partition> its = row.isNull(1) ? null : partitions.get(row.integer(1));
        if (its == null) continue; // of another topic, or of one that is deleted
        long slot = row.key, low = slot << OFFSET_BITS, start = row.integer(3), end = start, bytes = 0;
        if (chunk.ceiling(low) && chunk.key <= (low | MASK)) {
          start = chunk.key & MASK;
          bytes = -chunk.integer(POSITION);
          chunk.floor(low | MASK);
          end = (chunk.key & MASK) + chunk.integer(COUNT);
          bytes += chunk.integer(POSITION) + chunk.integer(SIZE) - row.integer(6);
        }
        its.add(new Partition((int) row.integer(2), start, end, bytes, slot));
      }
      for (List<Partition> its : partitions.values()) its.sort(Comparator.comparing(one -> one.number));
      return found;
    });
  }

  private Topic topic(String name) throws IOException {
    Topic found = inDatabase(name::equals).get(name);
    if (found == null) throw new UnknownTopic("there is no topic " + name + " in " + path);
    return found;
  }

  @Override
  public Partition partition(Range range) throws IOException {
    Topic found = topic(range.topic);
    if (range.epoch != found.epoch) throw new UnknownTopic(range.topic + " was deleted and made again");
    if (range.partition >= found.partitions.size())
      throw new UnknownPartition(range.topic + " has partitions 0 to " + (found.partitions.size() - 1));
    return found.partitions.get(range.partition);
  }

  @Override
  public Chunks read(Range range) throws IOException {
    Partition found = partition(range);
    long end = Math.min(range.end, found.end), low = found.slot << OFFSET_BITS;
    return new Chunks() {
      private final ArrayDeque<Stored> held = new ArrayDeque<>();
      private long offset = range.start;
      private StoreDamaged damage;

      @Override
      public Stored next() throws IOException {
        if (held.isEmpty() && offset < end) {
          if (damage != null) throw damaged(range, offset);
          fill();
        }
        return held.poll();
      }

      private void fill() throws IOException {
        for (long size = READ_BYTES; held.isEmpty(); size /= 2) {
          try {
            long wanted = size;
            held.addAll(within(() -> some(wanted)));
          } catch (StoreDamaged error) {
            if (size > 0) continue; // less at a time: what is good before the damage comes first
            damage = error;
            throw damaged(range, offset);
          }
          if (held.isEmpty()) {
            long first = partition(range).start;
            if (offset < first) throw new OffsetOutOfRange("the log begins at " + first + " now", first);
            throw damaged(range, offset);
          }
        }
        Stored last = held.peekLast();
        offset = last.base + last.count;
      }

      /** The chunks from the one that holds the offset on, without a gap. */
      private List<Stored> some(long size) throws IOException {
        ofEpoch(found.slot, range);
        List<Stored> some = new ArrayList<>();
        Rows row = chunks();
        long expected = offset, taken = 0;
        boolean there = row.floor(low | offset);
        if (there && (row.key < low || (row.key & MASK) + row.integer(COUNT) <= offset)) there = false;
        while (there && (row.key >> OFFSET_BITS) == found.slot) {
          long base = row.key & MASK;
          if (base >= end || (some.isEmpty() ? base > expected : base != expected)) break;
          byte[] data = row.blob(DATA);
          int count = (int) row.integer(COUNT);
          some.add(new Stored(base, count, data));
          expected = base + count;
          taken += data.length;
          if (expected >= end || taken >= size) break;
          there = row.next();
        }
        return some;
      }

      @Override
      public void close() {}
    };
  }

  /** A topic that still is the one that was looked up: its slot may be another one's by now. */
  private void ofEpoch(long slot, Range range) throws IOException {
    Rows partition = new Rows(pages, roots.get("partitions")), topic = new Rows(pages, roots.get("topics"));
    if (partition.ceiling(slot) && partition.key == slot && !partition.isNull(1)) {
      long id = partition.integer(1);
      if (topic.ceiling(id) && topic.key == id && topic.integer(2) == range.epoch) return;
    }
    throw new UnknownTopic(range.topic + " was deleted while it was read");
  }

  private CorruptChunk damaged(Range range, long offset) throws IOException {
    long[] lost = hole(range, offset);
    return new CorruptChunk(range.topic, range.partition, lost[0], lost[1]);
  }

  @Override
  public long[] hole(Range range, long offset) throws IOException {
    Partition found = partition(range);
    long low = found.slot << OFFSET_BITS;
    long first = offset, next = found.end;
    try {
      long[] both = within(() -> {
        Rows row = chunks();
        long before = offset;
        if (row.floor(low | offset) && row.key >= low) before = (row.key & MASK) + row.integer(COUNT);
        boolean behind = row.ceiling((low | offset) + 1) && row.key <= (low | MASK);
        return new long[] {before, behind ? row.key & MASK : found.end};
      });
      first = both[0];
      next = both[1];
    } catch (StoreDamaged error) {
      next = afterDamage(low, offset, found.end);
    }
    return new long[] {Math.min(first, offset), Math.max(next, offset + 1)};
  }

  /** Where a page is damaged: the first chunk behind it, found by asking ever further on, and then back. */
  private long afterDamage(long low, long offset, long end) throws IOException {
    long bad = offset, good = end;
    for (long step = 1; bad + step < end; step *= 2) {
      long base = baseFrom(low, bad + step);
      if (base < 0) {
        bad += step;
        continue;
      }
      good = base;
      break;
    }
    for (long high = good; bad + 1 < high; ) {
      long middle = (bad + high) >>> 1, base = baseFrom(low, middle);
      if (base < 0) {
        bad = middle;
      } else {
        good = base;
        high = middle;
      }
    }
    return good;
  }

  private long baseFrom(long low, long offset) throws IOException {
    try {
      return within(() -> {
        Rows row = chunks();
        if (!row.ceiling(low | offset) || row.key > (low | MASK)) return -1L;
        row.blob(DATA);
        return row.key & MASK;
      });
    } catch (StoreDamaged error) {
      return -1;
    }
  }

  @Override
  public long offsetForTime(String name, int number, long milliseconds) throws IOException {
    Topic topic = topic(name);
    if (number >= topic.partitions.size())
      throw new UnknownPartition(name + " has partitions 0 to " + (topic.partitions.size() - 1));
    Partition found = topic.partitions.get(number);
    long bottom = found.slot << OFFSET_BITS;
    // store time never goes back within a partition, so the chunks themselves are the index
    Stored holding = within(() -> {
      long low = found.start, high = found.end;
      Rows row = chunks();
      Stored best = null;
      while (low < high) {
        long middle = (low + high) >>> 1;
        if (!row.floor(bottom | middle) || row.key < bottom) {
          low = middle + 1;
          continue;
        }
        long base = row.key & MASK;
        if (row.integer(LAST_MS) < milliseconds) {
          low = Math.max(base + row.integer(COUNT), low + 1);
        } else {
          boolean all = row.integer(FIRST_MS) >= milliseconds;
          best = new Stored(base, (int) row.integer(COUNT), all ? null : row.blob(DATA));
          high = Math.min(base, middle);
        }
      }
      return best;
    });
    if (holding == null) return found.end;
    if (holding.data == null) return Math.max(holding.base, found.start);
    Chunk chunk = Chunk.checked(holding, name, number);
    int index = 0;
    while (index < chunk.count - 1 && chunk.time(index) < milliseconds) index++;
    return Math.max(found.start, holding.base + index);
  }
}
