package gateway.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.read.InputPartition;

/** An archive as its manifests name it (gateway/pipeline/manifest.py): what is older than the log, or no longer in it. */
final class Archive {
  private static final int LONGEST_NAME = 255, DIGEST = 16;
  private static final String BACKSLASH = "%5C";
  private static final String SPECIAL = "\"#%'*/:=?\\{}[]^\u007f";
  private static final long DAY_MS = 86_400_000;

  /** Consecutive records of one partition and one day: what one task reads. */
  static final class File implements InputPartition {
    final String topic, path;
    final long epoch, start, end;
    final int partition;

    File(String topic, String path, long epoch, int partition, long start, long end) {
      this.topic = topic;
      this.path = path;
      this.epoch = epoch;
      this.partition = partition;
      this.start = start;
      this.end = end;
    }
  }

  /** Up to where each partition of each life of a topic is done with, by place(). */
  final Map<String, Long> ends = new HashMap<>();

  /** Of it what was let go of: by place() the ends of gaps that somebody accepted. */
  private final Map<String, List<long[]>> accepted = new HashMap<>();

  private final Map<String, JsonNode> files = new LinkedHashMap<>();
  private final Path directory;

  Archive(String where) throws IOException {
    directory = new Path(where);
    Path manifests = new Path(directory, "_manifests");
    FileSystem system = manifests.getFileSystem(hadoop());
    if (!system.exists(manifests)) throw new NotAStore("there is no archive at " + where);
    List<Path> written = new ArrayList<>();
    for (FileStatus one : system.listStatus(manifests)) if (one.getPath().getName().endsWith(".json")) written.add(one.getPath());
    written.sort(null);
    for (int i = 0; i < written.size(); i++) {
      String name = String.format("%08d.json", i + 1);
      if (!written.get(i).getName().equals(name)) throw new StoreDamaged(new Path(manifests, name) + " is missing: put it back");
      try (InputStream in = system.open(written.get(i))) {
        add(Options.JSON.readTree(in));
      }
    }
    for (JsonNode one : files.values()) ends.merge(place(one), one.path("end").asLong(), Math::max);
  }

  /** The session's settings of file systems. */
  static Configuration hadoop() {
    return SparkSession.active().sessionState().newHadoopConf();
  }

  private void add(JsonNode manifest) {
    if (manifest.path("version").asInt() != 1) throw new StoreDamaged(directory + " has a manifest of another version");
    manifest.path("replaces").forEach(name -> files.remove(name.asText()));
    manifest.path("files").forEach(one -> files.put(one.path("name").asText(), one));
    for (JsonNode gap : manifest.path("accepted")) {
      ends.merge(place(gap), gap.path("end").asLong(), Math::max);
      accepted.computeIfAbsent(place(gap), none -> new ArrayList<>())
          .add(new long[] {gap.path("start").asLong(), gap.path("end").asLong()});
    }
  }

  static String place(String topic, long epoch, int partition) {
    return epoch + "/" + partition + "/" + topic;
  }

  private static String place(JsonNode one) {
    return place(one.path("topic").asText(), one.path("epoch").asLong(), one.path("partition").asInt());
  }

  /** Whether somebody accepted that all of a gap is lost. */
  boolean accepts(String place, long start, long end) {
    for (long[] gap : accepted.getOrDefault(place, List.of())) if (gap[0] <= start && end <= gap[1]) return true;
    return false;
  }

  /** The files of the topics that are meant, without those that conditions rule out. */
  List<File> files(Options options, Narrowing narrowing) {
    List<File> found = new ArrayList<>();
    for (JsonNode one : files.values()) {
      String topic = one.path("topic").asText(), day = one.path("day").asText();
      int partition = one.path("partition").asInt();
      long start = one.path("start").asLong(), end = one.path("end").asLong();
      long midnight = LocalDate.parse(day).toEpochDay() * DAY_MS;
      if (!options.topics.has(topic) || !options.topics.has(topic, partition)) continue;
      if (narrowing.rulesOut(topic, partition, start, end, midnight, midnight + DAY_MS)) continue;
      String part = one.path("part").asText(), below = part.isEmpty() ? "" : part + "/";
      String path = directory + "/" + directoryOf(topic) + "/day=" + day + "/" + below + one.path("name").asText();
      found.add(new File(topic, path, one.path("epoch").asLong(), partition, start, end));
    }
    return found;
  }

  /** The topics there are files of. */
  Set<String> topics() {
    Set<String> found = new HashSet<>();
    files.values().forEach(one -> found.add(one.path("topic").asText()));
    return found;
  }

  /** As topic_directory() in Python. */
  static String directoryOf(String topic) {
    StringBuilder made = new StringBuilder("topic=");
    topic.codePoints().forEach(one -> {
      if (one < 32 || SPECIAL.indexOf(one) >= 0) made.append(String.format("%%%02X", one));
      else made.appendCodePoint(one);
    });
    if (size(made) <= LONGEST_NAME) return made.toString();
    while (size(made) > LONGEST_NAME - BACKSLASH.length() - DIGEST) made.setLength(made.offsetByCodePoints(made.length(), -1));
    try {
      byte[] digest = MessageDigest.getInstance("SHA-256").digest(topic.getBytes(StandardCharsets.UTF_8));
      String hex = HexFormat.of().formatHex(Arrays.copyOf(digest, DIGEST / 2));
      return made.toString().replaceFirst("%.?$", "") + BACKSLASH + hex;
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException(error);
    }
  }

  private static int size(CharSequence text) {
    return text.toString().getBytes(StandardCharsets.UTF_8).length;
  }
}
