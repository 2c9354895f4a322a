package gateway.spark;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Predicate;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What a Kafka knows of a log that is on it; its records are read by Spark's own source. Loaded only where Kafka's client is. */
final class KafkaLog implements Log {
  private static final int PATIENCE_MS = 10_000;
  private static final int PAUSE_MS = 20, LONGEST_PAUSE_MS = 500;
  private static final ListOffsetsOptions COMMITTED = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
  private static final ListOffsetsOptions WRITTEN = new ListOffsetsOptions(IsolationLevel.READ_UNCOMMITTED);

  private final Brokers brokers;
  private final Admin admin;

  KafkaLog(Brokers brokers) {
    this.brokers = brokers;
    Map<String, Object> settings = new HashMap<>(brokers.client());
    settings.putIfAbsent("request.timeout.ms", PATIENCE_MS);
    settings.put("default.api.timeout.ms", Math.max(PATIENCE_MS, Integer.parseInt(settings.get("request.timeout.ms").toString())));
    try {
      admin = Admin.create(settings);
    } catch (KafkaException error) {
      throw new InvalidRequest("kafka: " + said(error));
    }
  }

  /** What is behind it. Where a token is not to be had Java's client makes whole stacks its message. */
  private static String said(KafkaException error) {
    Throwable why = error;
    while (why.getCause() != null) why = why.getCause();
    String first = String.valueOf(why.getMessage()).lines().findFirst().orElse("").replaceFirst("^([\\w.$]+(Exception|Error): )+", "");
    return first.contains("JWT") ? first + ". Java's client takes a token that is a signed JWT, and no other" : first;
  }

  @Override
  public void close() {
    admin.close(Duration.ZERO);
  }

  @Override
  public boolean dense() {
    return false;
  }

  @Override
  public Map<String, Topic> topics(Predicate<String> meant) throws IOException {
    Map<String, String> names = new TreeMap<>();
    for (String name : answer(admin.listTopics().names())) {
      String topic = brokers.topic(name);
      if (topic != null && meant.test(topic)) names.put(name, topic);
    }
    Map<TopicPartition, Long> first = new HashMap<>(), last = new HashMap<>();
    Map<String, TopicDescription> described = described(names.keySet());
    described.forEach((name, one) -> {
      for (TopicPartitionInfo part : one.partitions()) first.put(new TopicPartition(name, part.partition()), 0L);
    });
    last.putAll(first);
    ends(last);
    bounds(first, OffsetSpec.earliest(), COMMITTED);
    Map<String, Topic> found = new TreeMap<>();
    described.forEach((name, one) -> {
      List<Partition> parts = new ArrayList<>();
      for (TopicPartitionInfo part : one.partitions()) {
        TopicPartition place = new TopicPartition(name, part.partition());
        long start = first.getOrDefault(place, 0L);
        parts.add(new Partition(part.partition(), start, Math.max(start, last.getOrDefault(place, 0L)), 0, 0));
      }
      found.put(names.get(name), new Topic(names.get(name), epoch(one.topicId()), parts));
    });
    return found;
  }

  private Map<String, TopicDescription> described(Collection<String> names) throws IOException {
    Map<String, TopicDescription> found = new TreeMap<>();
    for (Map.Entry<String, KafkaFuture<TopicDescription>> one : admin.describeTopics(names).topicNameValues().entrySet()) {
      try {
        found.put(one.getKey(), answer(one.getValue()));
      } catch (UnknownTopic gone) {
        continue; // between the two questions
      }
    }
    return found;
  }

  /**
   * Where these end, once all that is written by now is decided: Kafka answers a commit before its partitions hear of it. Behind a
   * transaction that nobody ends there may be more, which counts when Kafka has ended it.
   */
  private void ends(Map<TopicPartition, Long> places) throws IOException {
    Map<TopicPartition, Long> written = new HashMap<>(places);
    bounds(written, OffsetSpec.latest(), WRITTEN);
    bounds(places, OffsetSpec.latest(), COMMITTED);
    long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
    for (int pause = PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      Map<TopicPartition, Long> open = new HashMap<>(places);
      open.entrySet().removeIf(one -> one.getValue() >= written.getOrDefault(one.getKey(), 0L));
      if (open.isEmpty() || System.nanoTime() - until >= 0) return;
      try {
        Thread.sleep(pause);
      } catch (InterruptedException error) {
        throw new Stopped(error);
      }
      places.keySet().removeAll(open.keySet());
      bounds(open, OffsetSpec.latest(), COMMITTED);
      places.putAll(open);
    }
  }

  private void bounds(Map<TopicPartition, Long> places, OffsetSpec which, ListOffsetsOptions how) throws IOException {
    Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
    places.keySet().forEach(place -> asked.put(place, which));
    ListOffsetsResult told = admin.listOffsets(asked, how);
    for (TopicPartition place : asked.keySet()) {
      try {
        places.put(place, answer(told.partitionResult(place)).offset());
      } catch (UnknownTopic gone) {
        places.remove(place);
      }
    }
  }

  /** Kafka's own name for this life of a topic, as a number that every protocol can carry. */
  private static long epoch(Uuid id) {
    return (id.getMostSignificantBits() ^ id.getLeastSignificantBits()) & Long.MAX_VALUE;
  }

  /** Raises UnknownTopic where one of these topics was deleted, or is another one by now. */
  void alive(Map<String, Long> epochs) throws IOException {
    Map<String, TopicDescription> now = described(epochs.keySet());
    for (Map.Entry<String, Long> one : epochs.entrySet()) {
      TopicDescription found = now.get(one.getKey());
      if (found == null || epoch(found.topicId()) != one.getValue()) throw new UnknownTopic(one.getKey() + " was made again");
    }
  }

  @Override
  public Partition partition(Range range) throws IOException {
    Topic topic = topics(range.topic::equals).get(range.topic);
    if (topic == null || topic.epoch != range.epoch) throw new UnknownTopic(range.topic + " was made again");
    return topic.partitions.get(range.partition);
  }

  @Override
  public long offsetForTime(String topic, int partition, long milliseconds) throws IOException {
    TopicPartition place = new TopicPartition(brokers.named(topic), partition);
    for (OffsetSpec which : List.of(OffsetSpec.forTimestamp(Math.max(0, milliseconds)), OffsetSpec.latest())) {
      long found = answer(admin.listOffsets(Map.of(place, which), COMMITTED).partitionResult(place)).offset();
      if (found >= 0) return found;
    }
    throw new StoreReadOnly("Kafka does not say where " + topic + "/" + partition + " ends");
  }

  @Override
  public Chunks read(Range range) {
    throw new StoreReadOnly("a log on Kafka is read by Spark's own source for it");
  }

  @Override
  public long[] hole(Range range, long offset) {
    return new long[] {offset, offset + 1};
  }

  private static <T> T answer(KafkaFuture<T> future) throws IOException {
    try {
      return future.get(2L * PATIENCE_MS, TimeUnit.MILLISECONDS);
    } catch (ExecutionException error) {
      if (error.getCause() instanceof UnknownTopicOrPartitionException) throw new UnknownTopic(error.getCause().getMessage());
      String what = error.getCause() instanceof AuthenticationException ? "the brokers do not let us in" : "Kafka does not do it";
      throw new StoreReadOnly(what + ": " + error.getCause().getMessage());
    } catch (TimeoutException error) {
      throw new StoreReadOnly("Kafka does not answer");
    } catch (InterruptedException error) {
      throw new Stopped(error);
    }
  }
}
