package gateway.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.zip.CRC32C;

/**
 * How far the journal beside a store's database goes (its layout is described in gateway/store/journal.py): what is acknowledged is
 * there first, and in the database a moment later.
 */
final class Journal {
  private static final int HEAD = 16, FRAME = 36, SALT = 8;
  private static final int MAGIC = 0x4c4a5747; // "GWJL"

  private final Tail[] tails;

  Journal(Path directory) {
    tails = new Tail[] {new Tail(directory.resolve("journal-0")), new Tail(directory.resolve("journal-1"))};
  }

  /** The number of the last commit in it; 0 if there is none. */
  long last() throws IOException {
    return Math.max(tails[0].look(), tails[1].look());
  }

  /** One of its files, which grows, and begins anew. */
  private static final class Tail {
    private final Path path;
    /** How it began, where the last frame ended, and the number of that. */
    private byte[] begins = {};
    private long at, last;

    Tail(Path path) {
      this.path = path;
    }

    long look() throws IOException {
      try (FileChannel file = FileChannel.open(path)) {
        byte[] now = read(file, 0, HEAD + FRAME).array();
        ByteBuffer head = ByteBuffer.wrap(now).order(ByteOrder.LITTLE_ENDIAN);
        if (now.length < HEAD + FRAME || head.getInt(0) != MAGIC) return 0;
        if (!Arrays.equals(now, begins)) {
          begins = now;
          at = HEAD;
          last = 0;
        }
        while (next(file, head.getLong(SALT))) {}
        return last;
      } catch (NoSuchFileException gone) {
        return 0;
      }
    }

    private boolean next(FileChannel file, long salt) throws IOException {
      ByteBuffer head = read(file, at, FRAME);
      if (head.capacity() < FRAME || head.getLong(0) != salt || head.getLong(16) <= last) return false;
      long length = Integer.toUnsignedLong(head.getInt(8));
      if (length > file.size() - at - FRAME) return false;
      ByteBuffer body = read(file, at + FRAME, (int) length);
      CRC32C sum = new CRC32C();
      sum.update(head.array(), 0, FRAME - 4);
      sum.update(body.array());
      if ((int) sum.getValue() != head.getInt(FRAME - 4)) return false;
      last = head.getLong(16);
      at += FRAME + length;
      return true;
    }

    /** As much as there is of so many bytes. */
    private static ByteBuffer read(FileChannel file, long at, int size) throws IOException {
      ByteBuffer into = ByteBuffer.allocate(size);
      while (into.hasRemaining() && file.read(into, at + into.position()) > 0) {}
      byte[] found = Arrays.copyOf(into.array(), into.position());
      return ByteBuffer.wrap(found).order(ByteOrder.LITTLE_ENDIAN);
    }
  }
}
