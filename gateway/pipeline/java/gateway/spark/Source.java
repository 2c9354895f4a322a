package gateway.spark;

import java.io.Serializable;

/** Where a log is: a path, the admin address of a gateway and how it is trusted, or a Kafka. It travels to executors. */
final class Source implements Serializable {
  final String path, url, token, ca, fingerprint;
  final boolean insecure;
  /** Whether ranges come compressed: for what is far away. */
  final boolean gzip;
  /** Seconds without a byte after which a connection counts as broken; for which what cannot be served just now is asked for again. */
  final double timeout, patience;
  /** null: it is on no Kafka. */
  final Brokers brokers;

  Source(String path, String url, String token, String ca, String fingerprint, boolean insecure, boolean gzip, double timeout, double patience) {
    this.path = path;
    this.url = url;
    this.token = token;
    this.ca = ca;
    this.fingerprint = fingerprint;
    this.insecure = insecure;
    this.gzip = gzip;
    this.timeout = timeout;
    this.patience = patience;
    brokers = null;
  }

  Source(Brokers brokers) {
    path = url = token = ca = fingerprint = "";
    insecure = gzip = false;
    timeout = patience = 0;
    this.brokers = brokers;
  }

  @Override
  public String toString() {
    if (brokers != null) return brokers.toString();
    return url.isEmpty() ? path : url;
  }
}
