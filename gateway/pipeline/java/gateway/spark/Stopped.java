package gateway.spark;

import java.io.InterruptedIOException;

/** Somebody has ended what was under way. Spark knows it by this type: a query that is stopped has not failed. */
final class Stopped extends InterruptedIOException {
  Stopped(InterruptedException why) {
    super("interrupted");
    initCause(why);
    Thread.currentThread().interrupt();
  }
}
