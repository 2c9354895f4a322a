package gateway.spark;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** The hash function of RFC 7693, without a key: Java has none, and ids are made by it. */
final class Blake2b {
  private static final int BLOCK = 128, ROUNDS = 12;
  private static final long[] START = {
    0x6a09e667f3bcc908L, 0xbb67ae8584caa73bL, 0x3c6ef372fe94f82bL, 0xa54ff53a5f1d36f1L,
    0x510e527fade682d1L, 0x9b05688c2b3e6c1fL, 0x1f83d9abfb41bd6bL, 0x5be0cd19137e2179L,
  };
  /** Which words of the block each round takes, in hexadecimal digits; the last two rounds are the first two. */
  private static final String[] ORDER = {
    "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
    "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
  };

  private Blake2b() {}

  /** So many bytes, at most 64. */
  static byte[] digest(byte[] data, int size) {
    long[] state = START.clone();
    state[0] ^= 0x01010000L ^ size;
    int at = 0;
    for (; data.length - at > BLOCK; at += BLOCK) mix(state, data, at, at + BLOCK, false);
    mix(state, data, at, data.length, true);
    ByteBuffer all = ByteBuffer.allocate(64).order(ByteOrder.LITTLE_ENDIAN);
    for (long word : state) all.putLong(word);
    byte[] found = new byte[size];
    all.get(0, found);
    return found;
  }

  private static void mix(long[] state, byte[] data, int from, int to, boolean last) {
    ByteBuffer block = ByteBuffer.allocate(BLOCK).order(ByteOrder.LITTLE_ENDIAN).put(0, data, from, to - from);
    long[] v = new long[16];
    System.arraycopy(state, 0, v, 0, 8);
    System.arraycopy(START, 0, v, 8, 8);
    v[12] ^= to;
    if (last) v[14] = ~v[14];
    for (int round = 0; round < ROUNDS; round++) {
      String order = ORDER[round % ORDER.length];
      for (int i = 0; i < 8; i++) {
        int a = i & 3, skew = i >> 2; // four columns, then four diagonals
        int b = 4 + (a + skew & 3), c = 8 + (a + 2 * skew & 3), d = 12 + (a + 3 * skew & 3);
        long x = word(block, order, 2 * i), y = word(block, order, 2 * i + 1);
        v[a] += v[b] + x;
        v[d] = Long.rotateRight(v[d] ^ v[a], 32);
        v[c] += v[d];
        v[b] = Long.rotateRight(v[b] ^ v[c], 24);
        v[a] += v[b] + y;
        v[d] = Long.rotateRight(v[d] ^ v[a], 16);
        v[c] += v[d];
        v[b] = Long.rotateRight(v[b] ^ v[c], 63);
      }
    }
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
  }

  private static long word(ByteBuffer block, String order, int place) {
    return block.getLong(8 * Character.digit(order.charAt(place), 16));
  }
}
