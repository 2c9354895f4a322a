package gateway.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.zip.GZIPInputStream;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;

/** A running gateway's log, by its bulk API. What breaks or cannot be served just now is asked for again, for a while. */
final class EndpointLog implements Log {
  private static final String CHUNKS = "application/vnd.gateway.chunks";
  private static final int CHUNK = 1, END = 2;
  /** About how much one request asks for: a reader that pauses holds nothing up for long. */
  private static final int READ_BYTES = 16 << 20;
  /** The largest frame that is believed: a chunk of messages that each may have 16 MiB. */
  private static final int LARGEST = 1 << 30;
  /** How many chunks, and of how many bytes, lie here while others are worked on. */
  private static final int AHEAD = 512, AHEAD_BYTES = 16 << 20;
  private static final Set<String> LATER = Set.of("read_only", "throttled", "shutting_down", "unknown_outcome");

  private final Source source;
  private final SSLContext trust;
  private Boolean dense;

  EndpointLog(Source source) {
    this.source = source;
    trust = source.url.startsWith("https") ? trusted() : null;
  }

  @Override
  public void close() {}

  // --- what there is ---

  @Override
  public boolean dense() throws IOException {
    if (dense == null) topics(name -> false);
    return dense;
  }

  @Override
  public Map<String, Topic> topics(Predicate<String> meant) throws IOException {
    Map<String, Topic> topics = new TreeMap<>();
    for (String after = ""; after != null; ) {
      JsonNode found = ask("/v1/topics" + (after.isEmpty() ? "" : "?after=" + encoded(after)));
      dense = found.path("dense_offsets").asBoolean(true);
      add(found, topics);
      after = found.path("following").asText().isEmpty() ? null : found.path("following").asText();
    }
    topics.keySet().removeIf(meant.negate());
    return topics;
  }

  @Override
  public Partition partition(Range range) throws IOException {
    Map<String, Topic> topics = new TreeMap<>();
    add(ask("/v1/topics?name=" + encoded(range.topic)), topics);
    Topic found = topics.get(range.topic);
    if (found == null || found.epoch != range.epoch) throw new UnknownTopic(range.topic + " was deleted, or made again");
    return found.partitions.get(range.partition);
  }

  private static void add(JsonNode found, Map<String, Topic> topics) {
    for (JsonNode topic : found.path("topics")) {
      List<Partition> partitions = new ArrayList<>();
      for (JsonNode one : topic.path("partitions"))
        partitions.add(
            new Partition(
                one.path("number").asInt(), one.path("start").asLong(), one.path("end").asLong(), one.path("bytes").asLong(), -1));
      topics.put(topic.path("name").asText(), new Topic(topic.path("name").asText(), topic.path("epoch").asLong(), partitions));
    }
  }

  @Override
  public long offsetForTime(String topic, int partition, long milliseconds) throws IOException {
    String query = "?topic=" + encoded(topic) + "&partition=" + partition + "&timestamp_ms=" + Math.max(0, milliseconds);
    return ask("/v1/offset-for-time" + query).path("offset").asLong();
  }

  @Override
  public long[] hole(Range range, long offset) {
    return new long[] {offset, offset + 1};
  }

  private static String encoded(String text) {
    return URLEncoder.encode(text, StandardCharsets.UTF_8);
  }

  // --- ranges ---

  @Override
  public Chunks read(Range range) throws IOException {
    return new Ahead(range);
  }

  /** Reads in a thread of its own while others work on what came before. */
  private final class Ahead implements Chunks, Runnable {
    private final Range range;
    private final BlockingQueue<Object> ready = new ArrayBlockingQueue<>(AHEAD);
    private final java.util.concurrent.Semaphore room = new java.util.concurrent.Semaphore(AHEAD_BYTES);
    private final Thread thread = new Thread(this, "gateway-range");
    private volatile HttpURLConnection open;
    private volatile boolean closed;
    private static final Object NOTHING = new Object();
    private boolean over;

    Ahead(Range range) {
      this.range = range;
      thread.setDaemon(true);
      thread.start();
    }

    @Override
    public Stored next() throws IOException {
      if (over) return null;
      Object found;
      try {
        found = ready.take();
      } catch (InterruptedException error) {
        throw new Stopped(error);
      }
      if (found instanceof Stored stored) {
        room.release(Math.min(stored.data.length, AHEAD_BYTES));
        return stored;
      }
      over = true;
      if (found instanceof IOException error) throw error;
      if (found instanceof RuntimeException error) throw error;
      return null;
    }

    @Override
    public void run() {
      Object last = NOTHING;
      try {
        long offset = range.start;
        Patience patience = new Patience();
        while (offset < range.end && !closed) {
          long before = offset;
          try {
            offset = frames(offset);
            if (offset == before) break; // the log ends here
            patience.reset();
          } catch (Cut error) {
            if (error.offset > offset) patience.reset();
            offset = Math.max(offset, error.offset);
            patience.again(error);
          }
        }
      } catch (IOException | RuntimeException error) {
        last = error;
      } catch (InterruptedException error) {
        last = new Stopped(error);
      }
      try {
        if (!closed) ready.put(last);
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
      }
    }

    /** One request's worth; returns where to go on. */
    private long frames(long start) throws IOException, InterruptedException {
      long at = start;
      String query = "?topic=" + encoded(range.topic) + "&partition=" + range.partition + "&start=" + start + "&end=" + range.end
          + "&max_bytes=" + READ_BYTES + "&epoch=" + range.epoch;
      try (InputStream body = opened("/v1/log" + query, CHUNKS, one -> open = one)) {
        DataInputStream in = new DataInputStream(new java.io.BufferedInputStream(body, 1 << 18));
        while (true) {
          int size = in.readInt(), kind = in.readUnsignedByte();
          if (size < 0 || size > LARGEST) throw new TargetError(source.url + " does not answer like a gateway");
          if (kind == CHUNK) {
            if (size < 12) throw new TargetError(source.url + " does not answer like a gateway");
            long base = in.readLong();
            int count = in.readInt();
            room.acquire(Math.min(size - 12, AHEAD_BYTES));
            byte[] data = in.readNBytes(size - 12);
            if (data.length < size - 12) throw new EOFException();
            if (base + count <= at || base > at && dense())
              throw new CorruptChunk(range.topic, range.partition, at, Math.max(base, at + 1));
            ready.put(new Stored(base, count, data));
            at = base + count;
          } else {
            byte[] rest = in.readNBytes(size);
            if (rest.length < size) throw new EOFException();
            if (kind == END) {
              in.skip(Long.MAX_VALUE); // what is left of the encoding, so that the connection can be used again
              return at;
            }
            throw problem(Options.JSON.readTree(rest));
          }
        }
      } catch (Cut error) {
        throw new Cut(error.getMessage(), error.getCause(), at);
      } catch (IOException error) {
        if (closed) throw error;
        throw new Cut(source.url + " ended its answer too soon", error, at);
      }
    }

    @Override
    public void close() {
      closed = true;
      HttpURLConnection now = open;
      thread.interrupt();
      try {
        if (now != null) now.disconnect();
      } catch (NullPointerException ended) {
        // the JDK's connection has no lock: our thread was at the end of it in this moment, and there is nothing to cut
      }
    }
  }

  // --- HTTP ---

  /** A connection that broke: the same may be asked again. */
  private static final class Cut extends IOException {
    final long offset;

    Cut(String message, Throwable cause, long offset) {
      super(message, cause);
      this.offset = offset;
    }
  }

  /** Waits between attempts, and says when there were enough. */
  private final class Patience {
    private long until;
    private double pause;

    void reset() {
      until = 0;
    }

    void again(Exception error) throws IOException, InterruptedException {
      long now = System.nanoTime();
      if (until == 0) {
        until = now + (long) (source.patience * 1e9);
        pause = 0.05;
      }
      if (now >= until) {
        if (error instanceof Cut) throw new EndpointUnreachable(error.getMessage(), error);
        throw (RuntimeException) error;
      }
      TimeUnit.NANOSECONDS.sleep(Math.min((long) (pause * 1e9), until - now));
      pause = Math.min(pause * 2, 1);
    }
  }

  /** Refused for now. */
  private static final class NotNow extends TargetError {
    NotNow(String message) {
      super(message);
    }
  }

  private JsonNode ask(String path) throws IOException {
    Patience patience = new Patience();
    while (true) {
      try {
        try (InputStream body = opened(path, "application/json", one -> {})) {
          return Options.JSON.readTree(body.readAllBytes());
        } catch (com.fasterxml.jackson.core.JsonProcessingException error) {
          throw new TargetError(source.url + " does not answer like a gateway: " + error.getOriginalMessage());
        } catch (Cut error) {
          throw error;
        } catch (IOException error) {
          throw new Cut(source.url + ": " + error.getMessage(), error, 0);
        }
      } catch (Cut | NotNow error) {
        try {
          patience.again(error);
        } catch (InterruptedException interrupted) {
          throw new Stopped(interrupted);
        }
      }
    }
  }

  private InputStream opened(String path, String accept, java.util.function.Consumer<HttpURLConnection> told) throws IOException {
    HttpURLConnection connection = (HttpURLConnection) URI.create(source.url + path).toURL().openConnection();
    told.accept(connection);
    connection.setConnectTimeout((int) (source.timeout * 1000));
    connection.setReadTimeout((int) (source.timeout * 1000));
    connection.setRequestProperty("Accept", accept);
    if (source.gzip && accept.equals(CHUNKS)) connection.setRequestProperty("Accept-Encoding", "gzip");
    if (!source.token.isEmpty()) connection.setRequestProperty("Authorization", "Bearer " + source.token);
    if (connection instanceof HttpsURLConnection secure) {
      secure.setSSLSocketFactory(trust.getSocketFactory());
      if (source.insecure || !source.fingerprint.isEmpty()) secure.setHostnameVerifier((host, session) -> true);
    }
    int status;
    try {
      status = connection.getResponseCode();
      if (status == 200) {
        boolean small = "gzip".equals(connection.getContentEncoding());
        return small ? new GZIPInputStream(connection.getInputStream(), 1 << 16) : connection.getInputStream();
      }
    } catch (ConnectException error) {
      throw new Cut("nothing listens at " + source.url + ": is the gateway running, with this `admin.bind`?", error, 0);
    } catch (SSLException error) {
      Throwable why = error;
      while (why.getCause() != null) why = why.getCause();
      if (why instanceof CertificateException || why instanceof java.security.cert.CertPathBuilderException)
        throw new TargetError(source.url + ": its certificate is not trusted: " + why.getMessage(), error);
      throw new TargetError(source.url + ": TLS failed (" + why.getMessage() + "): is it http:// there?", error);
    } catch (IOException error) {
      throw new Cut(source.url + ": " + error.getMessage(), error, 0);
    }
    byte[] text;
    try (InputStream body = connection.getErrorStream()) {
      text = body == null ? new byte[0] : body.readAllBytes();
    }
    JsonNode found;
    try {
      found = Options.JSON.readTree(text);
    } catch (IOException error) {
      found = null;
    }
    if (found != null && found.has("type")) throw problem(found);
    if (status == 401)
      throw new TargetError(source.url + " asks for another token (admin.token of its configuration): the option token, or GATEWAY_TOKEN");
    throw new TargetError(source.url + " answered " + status + ": is it the admin address of a gateway?");
  }

  private RuntimeException problem(JsonNode said) {
    String message = said.path("message").asText(), topic = said.path("topic").asText();
    return switch (said.path("type").asText()) {
      case "CorruptChunk" -> new CorruptChunk(
          topic, said.path("partition").asInt(), said.path("first").asLong(), said.path("next_offset").asLong());
      case "OffsetOutOfRange" -> new OffsetOutOfRange(message, said.path("first").asLong());
      case "UnknownTopic" -> new UnknownTopic(message);
      case "UnknownPartition" -> new UnknownPartition(message);
      default -> LATER.contains(said.path("status").asText()) ? new NotNow(message) : new TargetError(message);
    };
  }

  // --- trust ---

  private SSLContext trusted() {
    try {
      SSLContext context = SSLContext.getInstance("TLS");
      TrustManager[] managers = null;
      if (source.insecure || !source.fingerprint.isEmpty()) {
        managers = new TrustManager[] {new ByFingerprint(source.fingerprint)};
      } else if (!source.ca.isEmpty()) {
        KeyStore roots = KeyStore.getInstance(KeyStore.getDefaultType());
        roots.load(null, null);
        int number = 0;
        var pem = new ByteArrayInputStream(source.ca.getBytes(StandardCharsets.UTF_8));
        for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(pem))
          roots.setCertificateEntry("root" + number++, one);
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(roots);
        managers = factory.getTrustManagers();
      }
      context.init(null, managers, null);
      return context;
    } catch (GeneralSecurityException | IOException error) {
      throw new InvalidRequest("endpoint: the ca cannot be used: " + error.getMessage());
    }
  }

  /** Trusts the one certificate with this SHA-256; without one, any. */
  private static final class ByFingerprint extends javax.net.ssl.X509ExtendedTrustManager implements X509TrustManager {
    private final String wanted;

    ByFingerprint(String wanted) {
      this.wanted = wanted;
    }

    private void check(X509Certificate[] chain) throws CertificateException {
      if (wanted.isEmpty()) return;
      try {
        String shown = HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(chain[0].getEncoded()));
        if (!shown.equals(wanted)) throw new CertificateException("it has the fingerprint " + shown);
      } catch (java.security.NoSuchAlgorithmException error) {
        throw new CertificateException(error);
      }
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type) throws CertificateException {
      check(chain);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type) throws CertificateException {
      check(chain);
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type, java.net.Socket socket) throws CertificateException {
      check(chain);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type, java.net.Socket socket) throws CertificateException {
      check(chain);
    }

    @Override
    public void checkClientTrusted(X509Certificate[] chain, String type, javax.net.ssl.SSLEngine engine)
        throws CertificateException {
      check(chain);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] chain, String type, javax.net.ssl.SSLEngine engine)
        throws CertificateException {
      check(chain);
    }

    @Override
    public X509Certificate[] getAcceptedIssuers() {
      return new X509Certificate[0];
    }
  }
}
